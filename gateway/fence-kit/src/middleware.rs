//! The fence as a middleware of an actix-web service: in its process, before its handlers.
//!
//! ```text
//! request ─→ key, token ─→ Keeper::begin ─→ handler, on a task of its own ─→ ended ─→ answer
//! ```
//!
//! Owns: that no handler runs under a stale token, beside an older one that still runs, or without a token; that a handler
//! which was begun runs to its end although its caller has gone. Does not own: what the handler does; an effect that goes
//! on after it has returned is beyond this, and a handler that writes to a database is better fenced there.
//! On failure: a handler that panics leaves its request open: its key is in doubt until an operator clears it.

use crate::keeper::{Keeper, no_answer};
use crate::request::{framed, only_reads, token_of, trace_id};
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform, forward_ready};
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest};
use futures_util::future::LocalBoxFuture;
use gateway_kit::ApiError;
use http_contract::Code;
use lock_api::{FencingToken, LockKey};
use std::fmt;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

type KeyOf = dyn Fn(&HttpRequest) -> Result<LockKey, ApiError> + Send + Sync;

/// The middleware: `App::new().wrap(Fenced::new(keeper, key_of))`, or around a scope or a resource. Cheap to clone.
#[derive(Clone)]
pub struct Fenced {
    keeper: Keeper,
    key_of: Arc<KeyOf>,
    reads: bool,
}

impl fmt::Debug for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced")
            .field("keeper", &self.keeper)
            .field("reads", &self.reads)
            .finish_non_exhaustive()
    }
}

impl Fenced {
    /// Fences every request but GET and HEAD. `key_of` says what a request acts on; two requests that touch the same thing
    /// must have the same key.
    #[must_use]
    pub fn new(
        keeper: Keeper,
        key_of: impl Fn(&HttpRequest) -> Result<LockKey, ApiError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            keeper,
            key_of: Arc::new(key_of),
            reads: false,
        }
    }

    /// Fences GET and HEAD too: for a service whose reads have effects.
    #[must_use]
    pub fn reads_too(mut self) -> Self {
        self.reads = true;
        self
    }
}

/// What a fenced request was let through with, for the handler: an extractor. Pass the token on to whatever can check it
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedBy {
    /// What the request acts on.
    pub key: LockKey,
    /// The token.
    pub token: FencingToken,
}

impl FromRequest for FencedBy {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let found = request.extensions().get::<Self>().cloned();
        ready(found.ok_or_else(|| ApiError::new(Code::Internal, "the route is served without its fence")))
    }
}

impl<S, B> Transform<S, ServiceRequest> for Fenced
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<BoxBody>;
    type Error = Error;
    type Transform = FencedService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(FencedService {
            service: Rc::new(service),
            fenced: self.clone(),
        }))
    }
}

/// A service behind its fence.
#[derive(Debug)]
pub struct FencedService<S> {
    service: Rc<S>,
    fenced: Fenced,
}

impl<S, B> Service<ServiceRequest> for FencedService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<BoxBody>;
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<Self::Response, Error>>;

    forward_ready!(service);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (service, fenced) = (Rc::clone(&self.service), self.fenced.clone());
        Box::pin(async move {
            if !fenced.reads && only_reads(request.request()) {
                return service.call(request).await.map(ServiceResponse::map_into_boxed_body);
            }
            let asked = (fenced.key_of)(request.request()).and_then(|key| Ok((key, token_of(request.request())?)));
            let (key, token) = match asked {
                Ok(asked) => asked,
                Err(refusal) => return refuse(&fenced.keeper, request, refusal),
            };
            // On a task of its own: a caller that goes away would otherwise drop the handler anywhere in its work.
            let (tell, told) = oneshot::channel();
            actix_rt::spawn(guarded(fenced.keeper, service, request, key, token, tell));
            match told.await {
                Ok(answer) => answer,
                Err(_) => Err(no_answer(token, "the handler panicked").into()),
            }
        })
    }
}

async fn guarded<S, B>(
    keeper: Keeper,
    service: Rc<S>,
    request: ServiceRequest,
    key: LockKey,
    token: FencingToken,
    tell: oneshot::Sender<Result<ServiceResponse<BoxBody>, Error>>,
) where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    let what = format!("{} {}", request.method(), request.path());
    let answer = match keeper.begin(&key, token, &what).await {
        Err(refused) => refuse(&keeper, request, ApiError::from(refused)),
        Ok(mut pass) => {
            request.extensions_mut().insert(FencedBy { key, token });
            pass.sending();
            let answer = service.call(request).await;
            // An error of the handler is an answer too: it has ended.
            pass.answered().await;
            answer.map(ServiceResponse::map_into_boxed_body)
        }
    };
    // A caller that has gone does not want it.
    let _ = tell.send(answer);
}

fn refuse(keeper: &Keeper, request: ServiceRequest, refusal: ApiError) -> Result<ServiceResponse<BoxBody>, Error> {
    if framed(request.request()) {
        return Err(refusal.into());
    }
    let trace_id = trace_id(request.request(), &keeper.host().random);
    Ok(request.into_response(refusal.respond(&trace_id)))
}
