//! Asynchronous acks to whoever submitted (the proxy's R4), sent for the three ack faults alone.
//!
//! Owns: sending them. Does not own: when they are sent. On failure: an ack that could not be delivered is logged and
//! lost, as a real rail's would be.

use crate::AtPoint;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// How long an ack may take.
const ACK_WITHIN: Duration = Duration::from_secs(5);

/// The body of an ack.
#[derive(Clone, Debug, Serialize)]
pub struct Ack {
    pub client_reference: String,
    pub outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rail_reference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decline_reason: Option<String>,
    pub amount_minor: i64,
    pub currency: String,
}

/// Where acks go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckUrl {
    /// To this URL.
    Known(String),
    /// To the URL that stands in this file when an ack is due: for a rail that starts before whom it acks to.
    InFile(PathBuf),
}

impl AckUrl {
    /// A URL, or a file's name after `@`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        text.strip_prefix('@')
            .map_or_else(|| Self::Known(text.to_owned()), |file| Self::InFile(file.into()))
    }

    /// The URL as it is now.
    fn get(&self) -> Option<String> {
        match self {
            Self::Known(url) => Some(url.clone()),
            Self::InFile(file) => match std::fs::read_to_string(file) {
                Ok(url) => Some(url.trim().to_owned()),
                Err(error) => {
                    tracing::warn!(event = "ack_url_unread", file = %file.display(), %error);
                    None
                }
            },
        }
    }
}

/// Sends acks.
#[derive(Clone)]
pub struct Acks {
    client: awc::Client,
    url: Option<AckUrl>,
    at_point: AtPoint,
}

impl Acks {
    pub fn new(url: Option<AckUrl>, at_point: AtPoint) -> Self {
        Self {
            client: awc::Client::builder().timeout(ACK_WITHIN).disable_redirects().finish(),
            url,
            at_point,
        }
    }

    /// Sends acks one after the other.
    pub async fn deliver(&self, acks: Vec<Ack>) {
        let Some(url) = self.url.as_ref().filter(|_| !acks.is_empty()).and_then(AckUrl::get) else {
            return;
        };
        for ack in acks {
            (self.at_point)("rail_stub.before_ack");
            let answered = self.client.post(url.as_str()).force_close().send_json(&ack).await;
            (self.at_point)("rail_stub.after_ack");
            match answered {
                Ok(answer) if answer.status().is_success() => {
                    tracing::info!(event = "ack_delivered", client_reference = ack.client_reference);
                }
                Ok(answer) => tracing::warn!(event = "ack_refused", status = answer.status().as_u16()),
                Err(error) => tracing::warn!(event = "ack_lost", %error),
            }
        }
    }
}
