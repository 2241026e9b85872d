//! One request to the proxy, from its head to its answer.
//!
//! ```text
//! key, token, body ─→ intent │ ─→ exchange ─→ answer, streamed ─→ its end │ ─→ the caller learns the end
//! ```
//! │ is durable. From the intent on it runs on a task of its own: a caller that goes away changes nothing.

use super::State;
use super::exchange::{Body, Caller, End, Head, PIECES_MAX, Piece, Plan, body_error, exchange, has_no_body};
use super::headers::for_service;
use super::metrics::Outcome;
use crate::keeper::{Pass, no_answer};
use crate::request::{only_reads, token_of, trace_id};
use actix_web::body::{self, BodyStream, SizedStream};
use actix_web::http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, Stream};
use gateway_kit::ApiError;
use http_contract::{Code, header};
use lock_api::{FencingToken, LockKey};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Bodies up to this size are read before anything is written or sent, so that a caller that breaks off while it uploads
/// leaves nothing behind.
const READ_FIRST_BYTES_MAX: usize = 64 * 1024;

/// Answers one request.
pub(super) async fn handle(request: HttpRequest, payload: web::Payload, state: web::Data<State>) -> HttpResponse {
    let state = state.into_inner();
    match serve(&request, payload, &state).await {
        Ok(head) => respond(head, request.method()).await,
        Err(refusal) => {
            tracing::info!(
                event = "fence_refused",
                code = refusal.code().as_str(),
                method = request.method().as_str(),
                path = request.uri().path(),
                detail = refusal.detail(),
            );
            refusal.respond(&trace_id(&request, &state.keeper.host().random))
        }
    }
}

/// A refusal that is counted here; those of the exchange are counted there.
async fn serve(request: &HttpRequest, payload: web::Payload, state: &Arc<State>) -> Result<Head, ApiError> {
    let (plan, fence, permit) = match prepare(request, payload, state).await {
        Ok(prepared) => prepared,
        Err(refusal) => {
            state.metrics.count(Outcome::of(refusal.code()));
            return Err(refusal);
        }
    };
    let (tell_head, head) = oneshot::channel();
    let (tell_refusal, refusal) = oneshot::channel();
    let (pieces, receiver) = mpsc::channel(PIECES_MAX);
    let caller = Caller {
        head: Some(tell_head),
        pieces,
        receiver: Some(receiver),
    };
    let what = format!("{} {}", request.method(), request.uri().path());
    let token = fence.as_ref().map(|(_, token)| *token);
    let work = carry(Arc::clone(state), plan, fence, what, caller);
    actix_rt::spawn(async move {
        if let Err(error) = work.await {
            // A caller that has gone does not want it.
            let _ = tell_refusal.send(error);
        }
        drop(permit);
    });
    match head.await {
        Ok(head) => Ok(head),
        Err(_) => Err(refusal.await.unwrap_or_else(|_| {
            // A defect; how far it came is not known.
            let cause = "the exchange ended without a word";
            token.map_or_else(|| ApiError::new(Code::Internal, cause), |token| no_answer(token, cause))
        })),
    }
}

type Fence = Option<(LockKey, FencingToken)>;

/// Everything that can be refused without a trace.
async fn prepare(
    request: &HttpRequest,
    payload: web::Payload,
    state: &Arc<State>,
) -> Result<(Plan, Fence, OwnedSemaphorePermit), ApiError> {
    let options = &state.options;
    if state.is_draining() {
        let detail = "the proxy is about to end; nothing was done";
        return Err(ApiError::new(Code::BackendUnavailable, detail).retry_after(Duration::from_secs(1)));
    }
    // CONNECT and `*` name no path of the service.
    let Some(path) = request
        .uri()
        .path_and_query()
        .filter(|path| path.as_str().starts_with('/'))
    else {
        return Err(ApiError::new(Code::MethodNotAllowed, "the request names no path"));
    };
    // Its body has no end, and the service would be asked without the upgrade.
    let upgrades = request.headers().get_all(UPGRADE);
    if upgrades.filter_map(|value| value.to_str().ok()).any(is_websocket) {
        let detail = "this proxy passes on no upgrade: a connection that lives on cannot be fenced request by request";
        return Err(ApiError::invalid("upgrade", detail));
    }
    let url = format!("{}{path}", options.upstream);
    let fence = if !options.fence_reads && only_reads(request) {
        None
    } else {
        Some((options.key.of(request)?, token_of(request)?))
    };
    let Ok(permit) = Arc::clone(&state.room).try_acquire_owned() else {
        let detail = "too many requests are on their way; nothing was done";
        return Err(ApiError::new(Code::Overloaded, detail).retry_after(Duration::from_secs(1)));
    };
    let mut read = Vec::new();
    if let Some((_, token)) = &fence {
        read.push((header_name(header::FENCING_TOKEN)?, HeaderValue::from(token.get())));
        if let super::KeySource::Header(name) = &options.key {
            read.extend(request.headers().get(name).map(|value| (name.clone(), value.clone())));
        }
    }
    let plan = Plan {
        method: request.method().clone(),
        url,
        headers: for_service(
            request.headers(),
            read,
            matches!(options.key, super::KeySource::PrefixSegments(_)),
            request.peer_addr().map(|peer| peer.ip()),
        ),
        body: body(request, payload, options.body_bytes_max, options.timeout).await?,
        connect_within: options.connect_timeout.min(options.timeout),
        piece_within: options.timeout,
        to_the_end: fence.is_some(),
    };
    Ok((plan, fence, permit))
}

fn is_websocket(upgrade: &str) -> bool {
    upgrade
        .split(',')
        .any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"))
}

fn header_name(name: &str) -> Result<HeaderName, ApiError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|error| ApiError::new(Code::Internal, error.to_string()))
}

/// Reads the beginning of the body, or all of it.
async fn body(
    request: &HttpRequest,
    mut payload: web::Payload,
    bytes_max: u64,
    within: Duration,
) -> Result<Body, ApiError> {
    let too_large = || ApiError::new(Code::PayloadTooLarge, format!("the body exceeds {bytes_max} bytes"));
    let length = match request.headers().get(CONTENT_LENGTH) {
        None => None,
        Some(value) => Some(
            value
                .to_str()
                .ok()
                .and_then(|value| value.parse::<u64>().ok())
                .ok_or_else(|| ApiError::invalid("Content-Length", "must be a number"))?,
        ),
    };
    if length.is_none() && !request.headers().contains_key(TRANSFER_ENCODING) {
        let empty = matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE
        );
        return Ok(if empty { Body::None } else { Body::Whole(Bytes::new()) });
    }
    if length.is_some_and(|length| length > bytes_max) {
        return Err(too_large());
    }
    let (mut first, mut size) = (Vec::new(), 0_usize);
    let reading = async {
        while size <= READ_FIRST_BYTES_MAX {
            match payload.next().await {
                Some(Ok(piece)) => {
                    size += piece.len();
                    first.push(piece);
                }
                Some(Err(error)) => return Err(ApiError::invalid("body", body_error(&error))),
                None => return Ok(true),
            }
        }
        Ok(false)
    };
    let whole = tokio::time::timeout(within, reading)
        .await
        .map_err(|_| ApiError::invalid("body", format!("must arrive within {within:?}")))??;
    if u64::try_from(size).unwrap_or(u64::MAX) > bytes_max {
        return Err(too_large());
    }
    Ok(if whole {
        Body::Whole(first.concat().into())
    } else {
        Body::Streamed {
            first,
            rest: payload,
            length,
            bytes_max,
        }
    })
}

/// From the intent to the end. Answers why there was nothing to pass on, where nothing was.
async fn carry(state: Arc<State>, plan: Plan, fence: Fence, what: String, mut caller: Caller) -> Result<(), ApiError> {
    let pass = match fence {
        None => None,
        Some((key, token)) => match state.keeper.begin(&key, token, &what).await {
            Ok(pass) => Some(pass),
            Err(refused) => {
                let refusal = ApiError::from(refused);
                state.metrics.count(Outcome::of(refusal.code()));
                return Err(refusal);
            }
        },
    };
    state.levels();
    let answer = match pass {
        None => unfenced(&state, plan, &mut caller).await,
        Some(pass) => fenced(&state, plan, pass, &mut caller).await,
    };
    state.levels();
    answer
}

async fn unfenced(state: &State, plan: Plan, caller: &mut Caller) -> Result<(), ApiError> {
    let end = exchange(plan, caller).await;
    state.metrics.count(Outcome::Passed);
    match end {
        End::Answered => {
            let _ = caller.pieces.send(Piece::End).await;
            Ok(())
        }
        End::Abandoned => Ok(()),
        // Where the head was told already, the caller finds its body cut off.
        End::NeverSent(cause) | End::NoAnswer(cause) => Err(unreachable(&cause)),
    }
}

async fn fenced(state: &State, plan: Plan, mut pass: Pass, caller: &mut Caller) -> Result<(), ApiError> {
    let (token, within) = (pass.token(), state.options.timeout);
    pass.sending();
    // The whole of it has one bound; what is left of the connection when it has passed is dropped, and closed, in here.
    let end = tokio::time::timeout(within, exchange(plan, caller))
        .await
        .unwrap_or_else(|_| End::NoAnswer(format!("no whole answer within {within:?}")));
    match end {
        End::Answered => {
            // Before the caller learns the end: who has its answer may give its lock back, and the next holder must find
            // the key open.
            pass.answered().await;
            state.metrics.count(Outcome::Answered);
            let _ = caller.pieces.send(Piece::End).await;
            Ok(())
        }
        End::NeverSent(cause) => {
            pass.never_sent().await;
            state.metrics.count(Outcome::NeverSent);
            Err(unreachable(&cause))
        }
        End::NoAnswer(cause) => {
            tracing::warn!(event = "fence_no_answer", key = pass.key().as_str(), token = token.get(), %cause);
            pass.unanswered(&cause).await;
            state.metrics.count(Outcome::NoAnswer);
            Err(no_answer(token, &cause))
        }
        // Read to the end whatever becomes of the caller.
        End::Abandoned => {
            pass.unanswered("abandoned").await;
            Err(no_answer(token, "abandoned"))
        }
    }
}

/// The service's address stays in the log.
fn unreachable(cause: &str) -> ApiError {
    tracing::warn!(event = "fence_upstream_unreachable", %cause);
    ApiError::new(
        Code::BackendUnavailable,
        "the service could not be reached, or did not answer a read",
    )
    .retry_after(Duration::from_secs(1))
}

/// The service's answer, as it is.
async fn respond(mut head: Head, method: &Method) -> HttpResponse {
    let mut response = HttpResponse::build(head.status);
    for (name, value) in head.headers {
        response.append_header((name, value));
    }
    let is_head = *method == Method::HEAD;
    let no_body = has_no_body(is_head, head.status);
    if no_body || head.length == Some(0) {
        // The caller takes the head for the end, which it does not learn before the key is open.
        while let Some(Piece::Data(_)) = head.pieces.recv().await {}
    }
    let empty = stream::empty::<Result<Bytes, io::Error>>;
    match head.length {
        // It says how long the body is that the caller has.
        Some(length) if head.status == StatusCode::NOT_MODIFIED => {
            response.append_header((CONTENT_LENGTH, length)).body(body::None::new())
        }
        // A HEAD's answer says how long the body would be, and has none.
        Some(length) if is_head => response.body(SizedStream::new(length, empty())),
        None if is_head => response.body(BodyStream::new(empty())),
        _ if no_body => response.body(body::None::new()),
        Some(length) => response.body(SizedStream::new(length, pieces(head.pieces))),
        None => response.body(BodyStream::new(pieces(head.pieces))),
    }
}

/// The body's pieces; an error where they end without having been said to.
fn pieces(receiver: mpsc::Receiver<Piece>) -> impl Stream<Item = Result<Bytes, io::Error>> {
    stream::unfold(Some(receiver), |receiver| async {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Piece::Data(data)) => Some((Ok(data), Some(receiver))),
            Some(Piece::End) => None,
            None => {
                // What was given until now is written first: the server drops it when it sees the error.
                tokio::task::yield_now().await;
                Some((Err(io::Error::other("the service's answer broke off")), None))
            }
        }
    })
}
