//! The form that closes an exception of the rail (R8).
//!
//! Owns: what the operator must say before it is closed: who and what was found and done; the checks that it was this form,
//! once, from this console.
//! Does not own: the close. The rail proxy closes an exception once, and says who closed it before.
//! On failure: the form again, with what was wrong and what was typed.

use crate::guard::{self, same_origin};
use crate::http::{State, bad_address, busy, message};
use crate::page::{self, Document, Icon, Tone, payout_link, tag};
use crate::revoke::is_operator;
use crate::topic::{BadAddress, Topic};
use crate::upstream::words;
use crate::when;
use actix_web::http::StatusCode;
use actix_web::web::{Data, Form};
use actix_web::{HttpRequest, HttpResponse};
use http_client::CallError;
use http_contract::rail::{CloseExceptionBody, ExceptionRow};
use maud::{Markup, html};
use serde::Deserialize;

/// What a form of this kind is given out for, beside the exception's id.
const FORM: &str = "exception";

/// What the operator filled in.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Filled {
    #[serde(default)]
    form: String,
    #[serde(default)]
    operator: String,
    #[serde(default)]
    reason: String,
}

impl Filled {
    /// What is wrong with it, by field.
    fn wrong(&self) -> Option<(&'static str, String)> {
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

fn id_of(request: &HttpRequest) -> Result<u64, BadAddress> {
    let raw = request.uri().path().split('/').nth(2).unwrap_or_default();
    let canonical = !raw.starts_with('0') && raw.bytes().all(|b| b.is_ascii_digit());
    raw.parse().ok().filter(|_| canonical).ok_or(BadAddress::Invalid {
        field: "exception",
        reason: "is no id of an exception",
    })
}

/// What keeps a request from the form at all.
fn kept_out(state: &State) -> Option<HttpResponse> {
    state.read_only.then(|| {
        message(
            state,
            StatusCode::FORBIDDEN,
            "This console only reads",
            "It was started with --read-only. An exception is closed with: dlock payout exception close.",
        )
    })
}

/// `GET /exceptions/{id}/close`.
pub(crate) async fn form(state: Data<State>, request: HttpRequest) -> HttpResponse {
    if let Some(refused) = kept_out(&state) {
        return refused;
    }
    match id_of(&request) {
        Ok(id) => shown(&state, id, &Filled::default(), None, StatusCode::OK).await,
        Err(bad) => bad_address(&state, &bad),
    }
}

/// `POST /exceptions/{id}/close`.
pub(crate) async fn submit(state: Data<State>, request: HttpRequest, filled: Form<Filled>) -> HttpResponse {
    if let Some(refused) = kept_out(&state) {
        return refused;
    }
    if let Err(reason) = same_origin(request.headers()) {
        let what = format!("The request was refused, because {reason}. Nothing was closed.");
        return message(&state, StatusCode::FORBIDDEN, "Not from this console", &what);
    }
    let id = match id_of(&request) {
        Ok(id) => id,
        Err(bad) => return bad_address(&state, &bad),
    };
    let filled = filled.into_inner();
    if !state.forms.take(&filled.form, FORM, id, state.host.clock.wall_ms()) {
        let wrong = (
            "form",
            "was used already, is too old or is not of this console".to_owned(),
        );
        return shown(&state, id, &filled, Some(wrong), StatusCode::FORBIDDEN).await;
    }
    if let Some(wrong) = filled.wrong() {
        return shown(&state, id, &filled, Some(wrong), StatusCode::UNPROCESSABLE_ENTITY).await;
    }
    let body = CloseExceptionBody {
        reason: filled.reason.trim().to_owned(),
    };
    let operator = filled.operator.trim().to_owned();
    match state.hub.close_exception(id, operator.clone(), body).await {
        Ok(Ok(closed)) => {
            tracing::warn!(
                event = "exception_closed_from_console",
                exception_id = id,
                payout_id = closed.payout_id,
                operator
            );
            done(&state, &closed)
        }
        Ok(Err(error)) => {
            let status = match &error {
                CallError::Problem(problem) => StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY),
                _ => StatusCode::BAD_GATEWAY,
            };
            let what = match &error {
                CallError::Ambiguous(_) => format!("{}. It may have been closed: look at it again", words(&error)),
                _ => format!("{}. Nothing was changed", words(&error)),
            };
            shown(&state, id, &filled, Some(("rail proxy", what)), status).await
        }
        Err(why) => busy(&state, &why),
    }
}

/// The form, as the exception stands now.
async fn shown(
    state: &State,
    id: u64,
    filled: &Filled,
    wrong: Option<(&'static str, String)>,
    status: StatusCode,
) -> HttpResponse {
    let row = match state.hub.exception(id).await {
        Ok(row) => row,
        Err(why) => return busy(state, &why),
    };
    let now_ms = state.host.clock.wall_ms();
    let title = format!("Close exception {id}");
    let main = html! {
        h1 { (title) }
        @if let Some((field, what)) = &wrong {
            p.notice.bad #wrong role="alert" { (page::icon(Icon::Cross)) " " strong { (field) } " " (what) "." }
        }
        @match &row {
            Err(error) => p.notice.bad { (page::icon(Icon::Cross)) " The exception cannot be read: " (words(error)) "." },
            Ok(row) => (fields(state, row, filled, wrong.as_ref().map(|(field, _)| *field), now_ms)),
        }
        p { (page::link(&Topic::Queue, "Back to what needs a human")) }
    };
    answer(state, status, &title, main)
}

fn fields(state: &State, row: &ExceptionRow, filled: &Filled, wrong: Option<&str>, now_ms: i64) -> Markup {
    let seen = html! {
        p {
            (tag(Tone::Bad, Icon::Warning, &row.kind)) " of payout " (payout_link(&row.payout_id)) ", seen " (when::at(&row.at, now_ms)) ": "
            strong { (row.detail) } "."
        }
    };
    if let Some(by) = &row.closed_by {
        return html! {
            (seen)
            p.notice {
                (tag(Tone::Plain, Icon::Check, "CLOSED")) " by " strong { (by) }
                @if let Some(at) = &row.closed_at { ", " (when::at(at, now_ms)) }
                @if let Some(reason) = &row.closed_reason { ": " (reason) }
            }
        };
    }
    let secret = state.forms.give(FORM, row.exception_id, now_ms);
    let invalid = |field: &str| (wrong == Some(field)).then_some("true");
    html! {
        (seen)
        p.notice.warn {
            (page::icon(Icon::Warning)) " Closing it moves no money and changes no payout. It says that a human has settled this with the rail."
        }
        form.stacked method="post" {
            input type="hidden" name="form" value=(secret);
            label for="operator" { "Your name, as it is recorded with it" }
            input #operator name="operator" required maxlength="128" autocomplete="username" value=(filled.operator) aria-invalid=[invalid("operator")];
            label for="reason" { "What was found and done, in 8 to 500 characters" }
            input #reason name="reason" required minlength="8" maxlength="500" autocomplete="off" value=(filled.reason) aria-invalid=[invalid("reason")];
            button type="submit" { (page::icon(Icon::Check)) " Close exception " (row.exception_id) }
        }
    }
}

fn done(state: &State, closed: &ExceptionRow) -> HttpResponse {
    let title = format!("Exception {} is closed", closed.exception_id);
    let main = html! {
        h1 { (title) }
        p #done .notice.good role="status" {
            (page::icon(Icon::Check)) " " (closed.kind) " of payout " (payout_link(&closed.payout_id)) " was closed by "
            strong { (closed.closed_by.as_deref().unwrap_or_default()) } ": " (closed.closed_reason.as_deref().unwrap_or_default())
        }
        p { (page::link(&Topic::Queue, "Back to what needs a human")) }
    };
    answer(state, StatusCode::OK, &title, main)
}

fn answer(state: &State, status: StatusCode, title: &str, main: Markup) -> HttpResponse {
    let page = Document {
        title,
        section: "/queue",
        live: None,
        filters: html! {},
        main,
        read_only: state.read_only,
    };
    guard::page(status, page::document(&page))
}
