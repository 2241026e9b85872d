//! Break glass: the form that breaks a grant (L8).
//!
//! Owns: what the operator must do before a grant is broken: type the key again, say why, say who; the checks that it was
//! this form, once, from this console.
//! Does not own: the revoke. The lock server compares the token that was shown: where the grant has moved on meanwhile,
//! nothing is broken.
//! On failure: the form again, with what was wrong and what was typed.

use crate::guard::{self, same_origin};
use crate::http::{State, bad_address, busy, message};
use crate::page::{self, Document, Icon, Tone, tag};
use crate::topic::{BadAddress, Topic, lock_key_at};
use crate::upstream::words;
use crate::when;
use actix_web::http::StatusCode;
use actix_web::web::{Data, Form};
use actix_web::{HttpRequest, HttpResponse};
use http_client::CallError;
use http_contract::lock::{LockView, RevokeAnswer, RevokeBody};
use lock_api::LockKey;
use maud::{Markup, html};
use serde::Deserialize;

/// The largest form in bytes: a reason of 500 and an operator of 128 characters, percent-encoded, fit.
pub(crate) const BODY_BYTES_MAX: usize = 16 * 1024;
/// The bounds of an operator's name (C3.1), in characters.
const OPERATOR_CHARS: std::ops::RangeInclusive<usize> = 1..=128;

/// What the operator filled in.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Filled {
    #[serde(default)]
    form: String,
    #[serde(default)]
    token: u64,
    #[serde(default)]
    key: String,
    #[serde(default)]
    operator: String,
    #[serde(default)]
    reason: String,
}

impl Filled {
    /// What is wrong with it, by field.
    fn wrong(&self, key: &LockKey) -> Option<(&'static str, String)> {
        if self.key != key.as_str() {
            return Some(("key", "is not the key of this lock: type it exactly".to_owned()));
        }
        if !is_operator(&self.operator) {
            return Some((
                "operator",
                "must be 1 to 128 characters that show, in one line".to_owned(),
            ));
        }
        if gateway_kit::reason(&self.reason).is_err() {
            return Some(("reason", "must be 8 to 500 characters in one line".to_owned()));
        }
        None
    }
}

/// Whether this is the name of an operator.
pub(crate) fn is_operator(text: &str) -> bool {
    let text = text.trim();
    OPERATOR_CHARS.contains(&text.chars().count()) && !text.chars().any(gateway_kit::is_hidden)
}

fn key_of(request: &HttpRequest) -> Result<LockKey, BadAddress> {
    let raw = request.uri().path().split('/').nth(2).unwrap_or_default();
    let key = lock_key_at(raw, request.query_string())?;
    LockKey::new(key).map_err(|_| BadAddress::Invalid {
        field: "key",
        reason: "is no lock key",
    })
}

/// What keeps a request from the form at all.
fn kept_out(state: &State) -> Option<HttpResponse> {
    state.read_only.then(|| {
        message(
            state,
            StatusCode::FORBIDDEN,
            "This console only reads",
            "It was started with --read-only. A grant is broken with: dlock lock revoke.",
        )
    })
}

/// `GET /locks/{key}/revoke`.
pub(crate) async fn form(state: Data<State>, request: HttpRequest) -> HttpResponse {
    if let Some(refused) = kept_out(&state) {
        return refused;
    }
    match key_of(&request) {
        Ok(key) => shown(&state, &key, &Filled::default(), None, StatusCode::OK).await,
        Err(bad) => bad_address(&state, &bad),
    }
}

/// `POST /locks/{key}/revoke`.
pub(crate) async fn submit(state: Data<State>, request: HttpRequest, filled: Form<Filled>) -> HttpResponse {
    if let Some(refused) = kept_out(&state) {
        return refused;
    }
    if let Err(reason) = same_origin(request.headers()) {
        let what = format!("The request was refused, because {reason}. Nothing was broken.");
        return message(&state, StatusCode::FORBIDDEN, "Not from this console", &what);
    }
    let key = match key_of(&request) {
        Ok(key) => key,
        Err(bad) => return bad_address(&state, &bad),
    };
    let filled = filled.into_inner();
    let now_ms = state.host.clock.wall_ms();
    if !state.forms.take(&filled.form, key.as_str(), filled.token, now_ms) {
        let wrong = (
            "form",
            "was used already, is too old or is not of this console".to_owned(),
        );
        return shown(&state, &key, &filled, Some(wrong), StatusCode::FORBIDDEN).await;
    }
    if let Some(wrong) = filled.wrong(&key) {
        return shown(&state, &key, &filled, Some(wrong), StatusCode::UNPROCESSABLE_ENTITY).await;
    }
    let body = RevokeBody {
        revoke_token: filled.token,
        reason: filled.reason.trim().to_owned(),
    };
    let operator = filled.operator.trim().to_owned();
    match state.hub.revoke(key.clone(), operator.clone(), body).await {
        Ok(Ok(revoked)) => {
            tracing::warn!(
                event = "revoked_from_console",
                key = key.as_str(),
                operator,
                revoked_token = revoked.revoked_token,
                token = revoked.token
            );
            done(&state, &key, &revoked)
        }
        Ok(Err(error)) => {
            let status = match &error {
                CallError::Problem(problem) => StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY),
                _ => StatusCode::BAD_GATEWAY,
            };
            let what = match &error {
                CallError::Ambiguous(_) => format!("{}. It may have been broken: look at the lock", words(&error)),
                _ => format!("{}. Nothing was broken", words(&error)),
            };
            shown(&state, &key, &filled, Some(("lock server", what)), status).await
        }
        Err(why) => busy(&state, &why),
    }
}

/// The form, as the lock stands now.
async fn shown(
    state: &State,
    key: &LockKey,
    filled: &Filled,
    wrong: Option<(&'static str, String)>,
    status: StatusCode,
) -> HttpResponse {
    let lock = match state.hub.lock(key.clone()).await {
        Ok(lock) => lock,
        Err(why) => return busy(state, &why),
    };
    let now_ms = state.host.clock.wall_ms();
    let title = format!("Break the grant of {}", key.as_str());
    let back = Topic::Lock {
        key: key.as_str().to_owned(),
    };
    let main = html! {
        h1 { (title) }
        @if let Some((field, what)) = &wrong {
            p.notice.bad #wrong role="alert" { (page::icon(Icon::Cross)) " " strong { (field) } " " (what) "." }
        }
        @match &lock {
            Err(error) => p.notice.bad { (page::icon(Icon::Cross)) " The lock cannot be read: " (words(error)) "." },
            Ok(lock) => (fields(state, lock, filled, wrong.as_ref().map(|(field, _)| *field), now_ms)),
        }
        p { (page::link(&back, "Back to the lock")) }
    };
    answer(state, status, &title, main)
}

fn fields(state: &State, lock: &LockView, filled: &Filled, wrong: Option<&str>, now_ms: i64) -> Markup {
    let Some(holder) = &lock.holder else {
        return html! { p.notice { (tag(Tone::Plain, Icon::Open, "FREE")) " Nobody holds this key: there is nothing to break." } };
    };
    let secret = state.forms.give(&lock.key, holder.token, now_ms);
    let invalid = |field: &str| (wrong == Some(field)).then_some("true");
    html! {
        p {
            (tag(Tone::Warn, Icon::Locked, "HELD")) " by " strong { (holder.owner) } " under token " strong.token { (holder.token) }
            ", since " (when::at(&holder.since, now_ms)) "."
        }
        p.notice.warn {
            (page::icon(Icon::Warning)) " Its holder is not asked and not told before it is refused. The revoke mints a higher token; until a "
            "fence point has seen one, a write of the old holder still passes there. Bring it to both at once with "
            code { "dlock payout fence" } "."
        }
        form.stacked method="post" {
            input type="hidden" name="form" value=(secret);
            input type="hidden" name="token" value=(holder.token);
            label for="key" { "Type the key again: " code { (lock.key) } }
            input #key name="key" required autocomplete="off" spellcheck="false" value=(filled.key) aria-invalid=[invalid("key")];
            label for="operator" { "Your name, as it is recorded with it" }
            input #operator name="operator" required maxlength="128" autocomplete="username" value=(filled.operator) aria-invalid=[invalid("operator")];
            label for="reason" { "Why, in 8 to 500 characters" }
            input #reason name="reason" required minlength="8" maxlength="500" autocomplete="off" value=(filled.reason) aria-invalid=[invalid("reason")];
            button.danger type="submit" { (page::icon(Icon::Warning)) " Break the grant under token " (holder.token) }
        }
    }
}

fn done(state: &State, key: &LockKey, revoked: &RevokeAnswer) -> HttpResponse {
    let title = format!("The grant of {} is broken", key.as_str());
    let main = html! {
        h1 { (title) }
        p #done .notice.good role="status" {
            (page::icon(Icon::Check)) " Token " strong.token { (revoked.revoked_token) } " of " strong { (revoked.revoked_owner) }
            " is stale from now on. The revoke minted token " strong.token { (revoked.token) } "."
        }
        p { "It is not yet known at the fence points. " code { "dlock payout fence" } " brings it to both." }
        p { (page::lock_link(key.as_str())) }
    };
    answer(state, StatusCode::OK, &title, main)
}

fn answer(state: &State, status: StatusCode, title: &str, main: Markup) -> HttpResponse {
    let page = Document {
        title,
        section: "/locks",
        live: None,
        filters: html! {},
        main,
        read_only: state.read_only,
    };
    guard::page(status, page::document(&page))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(key: &str, operator: &str, reason: &str) -> Filled {
        Filled {
            key: key.to_owned(),
            operator: operator.to_owned(),
            reason: reason.to_owned(),
            ..Filled::default()
        }
    }

    #[test]
    fn the_key_is_typed_again_and_who_and_why_are_said() {
        let key = LockKey::new("payout:A").unwrap();
        let field = |filled: Filled| filled.wrong(&key).map(|(field, _)| field);
        assert_eq!(field(filled("payout:A", "ada", "the worker hangs")), None);
        assert_eq!(field(filled("payout:a", "ada", "the worker hangs")), Some("key"));
        assert_eq!(field(filled("payout:A", " ", "the worker hangs")), Some("operator"));
        assert_eq!(field(filled("payout:A", "ada", "short")), Some("reason"));
        assert_eq!(field(filled("payout:A", "ada", "two\nlines of it")), Some("reason"));
    }
}
