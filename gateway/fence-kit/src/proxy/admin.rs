//! What an operator sees and does: requests without an answer, a key's mark, clearing.

use super::State;
use crate::keeper::NotCleared;
use crate::marks::OpenRequest;
use actix_web::web::{self, Data, ServiceConfig};
use gateway_kit::{ApiError, Json, OperatorName, Query, rfc3339};
use http_contract::{Code, PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, Problem};
use lock_api::LockKey;
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};

/// A request that was passed on and has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenRow {
    /// Its name.
    pub id: String,
    /// What it acts on.
    pub key: String,
    /// The token it carried.
    pub token: u64,
    /// What was asked: method and path.
    pub what: String,
    /// When it was passed on (RFC 3339).
    pub begun_at: String,
    /// Whether it is on its way now: its answer may still come.
    pub in_flight: bool,
    /// Why there is no answer, where the proxy lived to see it.
    pub cause: Option<String>,
}

impl OpenRow {
    fn of(open: OpenRequest, in_flight: bool) -> Self {
        Self {
            id: open.id,
            key: open.key,
            token: open.token.get(),
            what: open.what,
            begun_at: rfc3339(open.begun_at.0),
            in_flight,
            cause: open.cause,
        }
    }
}

/// As a process sees it that sends nothing: none is on its way.
impl From<OpenRequest> for OpenRow {
    fn from(open: OpenRequest) -> Self {
        Self::of(open, false)
    }
}

/// Requests without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenAnswer {
    /// The oldest first.
    pub items: Vec<OpenRow>,
}

/// Which open requests.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenQuery {
    /// Of this key alone.
    #[serde(default)]
    pub key: Option<String>,
    /// The most rows, 1 to 1,000.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Which key.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkQuery {
    /// The key, 1 to 256 bytes.
    pub key: String,
}

/// A key's mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MarkAnswer {
    /// The key.
    pub key: String,
    /// The highest token under which a request was passed on.
    pub mark: Option<u64>,
    /// The highest token that was presented. Lower ones are refused.
    pub announced: Option<u64>,
    /// How many requests have no answer.
    pub open: u64,
}

/// Declares open requests of a key to be without effect from now on.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearBody {
    /// The key.
    pub key: String,
    /// How that is known, 8 to 500 characters.
    pub reason: String,
    /// Those that were looked at, by their names; all of the key where it is left out.
    #[serde(default)]
    pub ids: Option<Vec<String>>,
}

/// What was cleared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClearAnswer {
    /// Those that were open.
    pub cleared: Vec<OpenRow>,
}

pub(super) fn configure(config: &mut ServiceConfig, state: Data<State>) {
    config
        .app_data(state)
        .route("/v1/fence/open", web::get().to(open))
        .route("/v1/fence/mark", web::get().to(mark))
        .route("/v1/fence/clear", web::post().to(clear));
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "dlock fence-proxy",
        description = "A fence before a service that knows nothing of tokens: what an operator sees and does."
    ),
    paths(open, mark, clear),
    components(schemas(Problem, Code, OpenRow, OpenAnswer, MarkAnswer, ClearBody, ClearAnswer))
)]
struct Document;

/// The OpenAPI document of the admin listener.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

fn key(text: &str) -> Result<LockKey, ApiError> {
    Ok(LockKey::new(text)?)
}

/// Requests that were passed on and have no answer, oldest first.
#[utoipa::path(
    get,
    path = "/v1/fence/open",
    operation_id = "list_open_requests",
    tag = "fence",
    params(
        ("key" = Option<String>, Query, description = "Of this key alone"),
        ("limit" = Option<u32>, Query, description = "The most rows, 1 to 1,000; default 100")
    ),
    responses(
        (status = 200, description = "Those", body = OpenAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem)
    )
)]
async fn open(state: Data<State>, query: Query<OpenQuery>) -> Result<web::Json<OpenAnswer>, ApiError> {
    let limit = query.0.limit.unwrap_or(PAGE_LIMIT_DEFAULT);
    if !(1..=PAGE_LIMIT_MAX).contains(&limit) {
        return Err(ApiError::invalid(
            "limit",
            format!("must be between 1 and {PAGE_LIMIT_MAX}"),
        ));
    }
    let key = query.0.key.as_deref().map(key).transpose()?;
    let rows = state.keeper.open_requests(key, limit).await?;
    let items = rows.into_iter().map(|(open, live)| OpenRow::of(open, live)).collect();
    Ok(web::Json(OpenAnswer { items }))
}

/// A key's mark.
#[utoipa::path(
    get,
    path = "/v1/fence/mark",
    operation_id = "get_mark",
    tag = "fence",
    params(("key" = String, Query, description = "The key")),
    responses(
        (status = 200, description = "Its mark; nulls for a key that nobody has used", body = MarkAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem)
    )
)]
async fn mark(state: Data<State>, query: Query<MarkQuery>) -> Result<web::Json<MarkAnswer>, ApiError> {
    let key = key(&query.0.key)?;
    let row = state.keeper.mark(key.clone()).await?;
    Ok(web::Json(MarkAnswer {
        key: key.as_str().to_owned(),
        mark: row.mark.map(lock_api::FencingToken::get),
        announced: row.announced.map(lock_api::FencingToken::get),
        open: row.open,
    }))
}

/// Declares open requests of a key to be without effect from now on. Recorded with name and reason. Refused while one of
/// them is on its way.
#[utoipa::path(
    post,
    path = "/v1/fence/clear",
    operation_id = "clear_key",
    tag = "fence",
    request_body = ClearBody,
    params(("X-Operator" = String, Header, description = "Who, 1 to 128 characters")),
    responses(
        (status = 200, description = "What was open; none is fine", body = ClearAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem),
        (status = 409, description = "CONFLICT: one of them is on its way", body = Problem)
    )
)]
async fn clear(
    state: Data<State>,
    operator: OperatorName,
    body: Json<ClearBody>,
) -> Result<web::Json<ClearAnswer>, ApiError> {
    let key = key(&body.0.key)?;
    let reason = gateway_kit::reason(&body.0.reason)?;
    let cleared = state
        .keeper
        .clear(&key, body.0.ids.as_deref(), operator.0.as_str(), reason)
        .await;
    state.levels();
    match cleared {
        Ok(cleared) => Ok(web::Json(ClearAnswer {
            cleared: cleared.into_iter().map(|open| OpenRow::of(open, false)).collect(),
        })),
        Err(NotCleared::InFlight(id)) => {
            let detail = "a request of this key is on its way: wait for its answer, or for its time-out";
            Err(ApiError::new(Code::Conflict, detail).field("id", id))
        }
        Err(NotCleared::Store(error)) => Err(error.into()),
    }
}
