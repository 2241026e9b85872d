//! What a handler learns of its request, for the request's record in the trace.

use crate::ApiError;
use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use actor_kit::About;
use std::cell::RefCell;
use std::future::{Ready, ready};
use std::rc::Rc;

/// What the request's record in the trace is told beyond its head: the payout that stands in its body, the token that it
/// is answered. Outside the gateway's frame what is told is told to nobody.
#[derive(Clone, Debug, Default)]
pub struct Noted(Rc<RefCell<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    token: Option<u64>,
    about: About,
}

impl Noted {
    /// The request is about this payout.
    pub fn payout(&self, payout_id: &str) {
        self.0.borrow_mut().about = About::Payout(payout_id.into());
    }

    /// This token is what the request is answered.
    pub fn token(&self, token: u64) {
        self.0.borrow_mut().token = Some(token);
    }

    pub(crate) fn take(&self) -> (Option<u64>, About) {
        let notes = self.0.take();
        (notes.token, notes.about)
    }
}

impl FromRequest for Noted {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let framed = request.extensions().get::<Self>().cloned();
        ready(Ok(framed.unwrap_or_default()))
    }
}
