//! The typed client that the executor and the operator's commands use, against this server: the whole way of a payout.

use crate::support::Api;
use actor_kit::TraceContext;
use host_kit::Random;
use http_client::{CallError, Caller, ClientOptions, ExportFormat, PaymentApi, PayoutFilter, client};
use http_contract::Code;
use http_contract::payment::{
    CancelBody, ClaimBody, CreatePayoutBody, CreditBody, Creditor, OpenAccountBody, PayoutState, PostBody, ReasonBody,
    Resolution, ResolveBody,
};
use lock_api::FencingToken;
use std::time::Duration;

fn t(token: u64) -> FencingToken {
    token.to_string().parse().unwrap()
}

fn payout(payout_id: &str) -> CreatePayoutBody {
    CreatePayoutBody {
        payout_id: Some(payout_id.into()),
        account_id: "A".into(),
        amount_minor: 100,
        currency: "EUR".into(),
        creditor: Creditor {
            name: "n".into(),
            account: "a".into(),
        },
        reference: None,
    }
}

#[actix_web::test]
async fn the_typed_client_and_the_server_agree_on_every_route() {
    let server = Api::start().await;
    let caller = Caller::new(
        client(&ClientOptions::default()),
        format!("http://{}", server.socket.0),
        Duration::from_secs(20),
    );
    let (api, trace) = (PaymentApi::new(caller), TraceContext::root(&Random::seeded(1)));
    let open = OpenAccountBody {
        account_id: "A".into(),
        currency: "EUR".into(),
        opening_balance_minor: 1_000,
    };
    assert_eq!(api.open_account(&open, &trace).await.unwrap().balance_minor, 1_000);
    let credit = CreditBody {
        amount_minor: 50,
        reference: "top-up".into(),
    };
    assert!(!api.credit("A", "k", &credit, &trace).await.unwrap().replayed);
    assert!(api.credit("A", "k", &credit, &trace).await.unwrap().replayed);
    for id in ["P", "Q", "R", "S"] {
        api.create_payout(id, &payout(id), &trace).await.unwrap();
    }
    let pending = PayoutFilter {
        state: Some(PayoutState::Pending),
        account_id: None,
    };
    assert_eq!(api.payouts(&pending, 3, None, &trace).await.unwrap().items.len(), 3);

    let claim = ClaimBody {
        expected_version: Some(1),
    };
    let claimed = api.claim("P", t(5), Some("w1"), &claim, &trace).await.unwrap();
    assert_eq!(claimed.body.state, PayoutState::Claimed);
    server.rail("P", Some("ACKED"), Some("r"));
    let post = PostBody {
        rail_reference: "r".into(),
    };
    assert_eq!(
        api.post("P", t(5), Some("w1"), &post, &trace).await.unwrap().body.state,
        PayoutState::Posted
    );
    assert!(api.post("P", t(5), Some("w1"), &post, &trace).await.unwrap().replayed);

    let reason = ReasonBody { reason: "x".into() };
    api.claim("Q", t(6), None, &ClaimBody::default(), &trace).await.unwrap();
    server.rail("Q", Some("DECLINED"), None);
    api.fail("Q", t(6), None, &reason, &trace).await.unwrap();

    api.claim("R", t(7), None, &ClaimBody::default(), &trace).await.unwrap();
    server.rail("R", Some("TIMEOUT"), None);
    api.ambiguous("R", t(7), None, &reason, &trace).await.unwrap();
    let resolve = ResolveBody {
        outcome: Resolution::Failed,
        rail_reference: None,
        reason: None,
    };
    let missing = api.resolve("R", t(8), None, &resolve, &trace).await.unwrap_err();
    assert_eq!(missing.code(), Some(Code::OutcomeEvidenceMissing));
    let by_hand = ResolveBody {
        reason: Some("the bank says no".into()),
        ..resolve
    };
    api.resolve_by_hand("R", t(8), "op", &by_hand, &trace).await.unwrap();
    let cancelled = api.cancel("S", "op", &CancelBody::default(), &trace).await.unwrap();
    assert_eq!(cancelled.failure_reason.as_deref(), Some("CANCELLED"));

    assert_eq!(api.fence("A", t(20), &trace).await.unwrap().fence, 19);
    match api
        .claim("S", t(19), None, &ClaimBody::default(), &trace)
        .await
        .unwrap_err()
    {
        CallError::Problem(problem) => {
            assert_eq!((problem.code, problem.text("reason")), (Code::FencedOut, Some("stale")));
        }
        other => panic!("{other}"),
    }
    assert_eq!(api.account("A", &trace).await.unwrap().available_minor, 950);
    assert_eq!(api.accounts(10, None, &trace).await.unwrap().items.len(), 1);
    assert_eq!(
        api.payout("P", &trace).await.unwrap().rail_reference.as_deref(),
        Some("r")
    );
    assert_eq!(api.payout_history("P", &trace).await.unwrap().items.len(), 3);
    assert_eq!(api.ledger("A", 10, None, &trace).await.unwrap().items.len(), 2);
    assert_eq!(
        api.export(ExportFormat::Jsonl, &trace).await.unwrap().lines().count(),
        4
    );
    assert!(api.verify(&trace).await.unwrap().ok);
}
