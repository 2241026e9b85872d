//! The console's routes: pages, their streams, assets, the two forms.

use crate::guard::{self, Forms};
use crate::hub::{Busy, Frame, Frames, Hub, Viewer};
use crate::page::{self, Document};
use crate::topic::{BadAddress, Topic};
use crate::{assets, close, filters, revoke};
use actix_web::http::StatusCode;
use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures_util::stream;
use gateway_kit::{Caller, Drain, Peer};
use host_kit::Host;
use maud::html;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, PathItem, PathsBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::Type;
use utoipa::openapi::{ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, RefOr, ResponseBuilder};

/// How often a stream says that it lives.
const BEAT: Duration = Duration::from_secs(5);
/// How long a browser waits before it connects again.
const RETRY_MS: u64 = 1_000;

/// What every request needs.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) hub: Hub,
    pub(crate) host: Host,
    pub(crate) drain: Drain,
    pub(crate) forms: Forms,
    pub(crate) read_only: bool,
}

/// The templates of the pages. Each page but the forms has a stream at the same address below `/live`.
const PAGES: [&str; 12] = [
    "/",
    "/locks",
    "/locks/{key}",
    "/sessions",
    "/sessions/{id}",
    "/payouts",
    "/payouts/{id}",
    "/accounts",
    "/queue",
    "/refusals",
    "/actors",
    "/scenario",
];

/// The document of the console's routes: pages for people.
#[must_use]
pub fn openapi() -> OpenApi {
    let answer = |what: &str, media: &str, example: &str| {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        let content = ContentBuilder::new().schema(Some(text)).example(Some(example.into()));
        ResponseBuilder::new()
            .description(what)
            .content(media, content.build())
            .build()
    };
    let html = |what: &str, title: &str| {
        let page = format!(
            "<!DOCTYPE html><html lang=\"en\"><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
        );
        answer(what, "text/html", &page)
    };
    let refusals = |operation: OperationBuilder| {
        let misdirected = ResponseBuilder::new().description("MISDIRECTED_REQUEST: the request names another host");
        operation
            .response("404", html("No such page, or nothing of that name", "No such page"))
            .response("421", misdirected.build())
    };
    let get = |what: &str| refusals(OperationBuilder::new().response("200", html(what, "Locks"))).build();
    let live = |what: &str| {
        let beat = "event: beat\ndata: {\"now_ms\":1767323045678}\n\n";
        refusals(OperationBuilder::new().response("200", answer(what, "text/event-stream", beat))).build()
    };
    let mut paths = PathsBuilder::new();
    for template in PAGES {
        let stream = format!("/live{template}");
        paths = paths
            .path(template, PathItem::new(HttpMethod::Get, get("A page")))
            .path(
                stream,
                PathItem::new(
                    HttpMethod::Get,
                    live("The page as server-sent events: snapshot, update, beat"),
                ),
            );
    }
    let asset = OperationBuilder::new()
        .response(
            "200",
            answer("A style sheet, script or icon", "text/css", "body { margin: 0 }"),
        )
        .response("404", html("No such file", "No such page"))
        .build();
    let mut form = PathItem::new(HttpMethod::Get, get("The form that breaks a grant"));
    let fields = ContentBuilder::new().schema(Some(ObjectBuilder::new().build()));
    let body = RequestBodyBuilder::new()
        .content("application/x-www-form-urlencoded", fields.build())
        .build();
    let filled = |what: &str| {
        let mut done = get(what);
        done.request_body = Some(RefOr::T(body.clone()));
        done
    };
    form.post = Some(filled("The grant is broken"));
    let mut closing = PathItem::new(HttpMethod::Get, get("The form that closes an exception"));
    closing.post = Some(filled("The exception is closed"));
    let paths = paths
        .path("/locks/{key}/revoke", form)
        .path("/exceptions/{id}/close", closing)
        .path("/assets/{file}", PathItem::new(HttpMethod::Get, asset))
        .build();
    let info = InfoBuilder::new()
        .title("dlock console")
        .description(Some("The operator's pages. Programs ask the components themselves."))
        .version(env!("CARGO_PKG_VERSION"))
        .build();
    OpenApiBuilder::new().info(info).paths(paths).build()
}

/// Adds the routes.
pub(crate) fn configure(config: &mut ServiceConfig, state: State) {
    config
        .app_data(Data::new(state))
        .app_data(web::FormConfig::default().limit(revoke::BODY_BYTES_MAX))
        .route("/assets/{file}", web::get().to(asset))
        .route("/locks/{key}/revoke", web::get().to(revoke::form))
        .route("/locks/{key}/revoke", web::post().to(revoke::submit))
        .route("/exceptions/{id}/close", web::get().to(close::form))
        .route("/exceptions/{id}/close", web::post().to(close::submit))
        .route("/live", web::get().to(live))
        .route("/live/{tail:.*}", web::get().to(live))
        .route("/{tail:.*}", web::get().to(show));
}

/// A page that only says something.
pub(crate) fn message(state: &State, status: StatusCode, title: &str, what: &str) -> HttpResponse {
    let page = Document {
        title,
        section: "",
        live: None,
        filters: html! {},
        main: html! { h1 { (title) } p { (what) } p { a href="/" { "To the overview" } } },
        read_only: state.read_only,
    };
    guard::page(status, page::document(&page))
}

pub(crate) fn bad_address(state: &State, bad: &BadAddress) -> HttpResponse {
    match bad {
        BadAddress::NoSuchPage => message(
            state,
            StatusCode::NOT_FOUND,
            "No such page",
            "Nothing is at this address.",
        ),
        BadAddress::Invalid { field, reason } => message(
            state,
            StatusCode::BAD_REQUEST,
            "This address cannot be read",
            &format!("{field} {reason}."),
        ),
    }
}

pub(crate) fn busy(state: &State, busy: &Busy) -> HttpResponse {
    let what = format!("This console is busy: {}. Load again in a moment.", busy.0);
    message(state, StatusCode::SERVICE_UNAVAILABLE, "Too many at once", &what)
}

async fn asset(state: Data<State>, request: HttpRequest) -> HttpResponse {
    assets::serve(request.uri().path()).unwrap_or_else(|| bad_address(&state, &BadAddress::NoSuchPage))
}

async fn show(state: Data<State>, request: HttpRequest) -> HttpResponse {
    let topic = match Topic::parse(request.uri().path(), request.query_string()) {
        Ok(topic) => topic,
        Err(bad) => return bad_address(&state, &bad),
    };
    let loaded = state
        .hub
        .load(topic.clone(), Caller::of(&request), state.host.clock.wall_ms())
        .await;
    let (mut frames, _viewer) = match loaded {
        Ok(loaded) => loaded,
        Err(why) => return busy(&state, &why),
    };
    let Some(frame) = first(&mut frames).await else {
        return busy(&state, &Busy("this page is read no more".to_owned()));
    };
    let page = Document {
        title: &frame.title,
        section: topic.section(),
        live: Some((format!("/live{}", topic.href()), frame.at_ms)),
        filters: filters::of(&topic),
        main: html! { (maud::PreEscaped(&frame.html)) },
        read_only: state.read_only,
    };
    guard::page(StatusCode::OK, page::document(&page))
}

/// The frame that is shown now, or the first one when there is none yet.
async fn first(frames: &mut Frames) -> Option<Arc<Frame>> {
    let seen = frames.wait_for(Option::is_some).await.ok()?;
    seen.clone()
}

async fn live(state: Data<State>, request: HttpRequest) -> HttpResponse {
    let path = request.uri().path();
    let topic = match Topic::parse(path.strip_prefix("/live").unwrap_or(path), request.query_string()) {
        Ok(topic) => topic,
        Err(bad) => return bad_address(&state, &bad),
    };
    let seated = state
        .hub
        .view(topic, Caller::of(&request), state.host.clock.wall_ms())
        .await;
    let (frames, viewer) = match seated {
        Ok(seated) => seated,
        Err(why) => return busy(&state, &why),
    };
    let stream = Stream {
        frames,
        viewer,
        host: state.host.clone(),
        drain: state.drain.clone(),
        peer: Peer::of(&request),
        begun: false,
    };
    guard::secured(StatusCode::OK)
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(stream::unfold(stream, |mut stream| async move {
            let next = stream.next().await?;
            Some((Ok::<_, Infallible>(next), stream))
        }))
}

/// One browser's stream of one page: a snapshot, then the latest whenever it has changed, and a beat in between. Whoever
/// comes back after a cut begins with a snapshot again, so nothing has to be kept for it.
struct Stream {
    frames: Frames,
    viewer: Arc<Viewer>,
    host: Host,
    drain: Drain,
    /// A browser that has gone gives its seat back at once, not at the next write that fails.
    peer: Peer,
    begun: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.viewer.is_dropped() {
            return None;
        }
        self.viewer.progress(self.host.clock.wall_ms());
        if !self.begun {
            self.begun = true;
            let frame = tokio::select! {
                biased;
                () = self.drain.begun() => return None,
                () = self.peer.gone() => return None,
                frame = first(&mut self.frames) => frame?,
            };
            self.frames.mark_unchanged();
            return Some(event("snapshot", &frame));
        }
        tokio::select! {
            biased;
            () = self.drain.begun() => None,
            () = self.peer.gone() => None,
            changed = self.frames.changed() => {
                changed.ok()?;
                let frame = self.frames.borrow_and_update().clone()?;
                Some(event("update", &frame))
            }
            () = self.host.clock.sleep(BEAT) => {
                let now_ms = self.host.clock.wall_ms();
                Some(Bytes::from(format!("event: beat\ndata: {{\"now_ms\":{now_ms}}}\n\n")))
            }
        }
    }
}

fn event(name: &str, frame: &Frame) -> Bytes {
    let data = serde_json::json!({ "now_ms": frame.at_ms, "title": frame.title, "html": frame.html });
    // Compact JSON has no line breaks.
    Bytes::from(format!(
        "retry: {RETRY_MS}\nevent: {name}\nid: {}\ndata: {data}\n\n",
        frame.seq
    ))
}
