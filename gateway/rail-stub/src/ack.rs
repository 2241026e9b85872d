//! Asynchronous acks to whoever submitted (the proxy's R4), sent for the three ack faults alone.
//!
//! Owns: sending them. Does not own: when they are sent. On failure: an ack that could not be delivered is logged and
//! lost, as a real rail's would be.

use serde::Serialize;
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
#[derive(Clone)]
pub struct Acks {
    client: awc::Client,
    url: Option<String>,
}

impl Acks {
    pub fn new(url: Option<String>) -> Self {
        Self {
            client: awc::Client::builder().timeout(ACK_WITHIN).disable_redirects().finish(),
            url,
        }
    }

    /// Sends acks one after the other.
    pub async fn deliver(&self, acks: Vec<Ack>) {
        let Some(url) = &self.url else { return };
        for ack in acks {
            match self.client.post(url).force_close().send_json(&ack).await {
                Ok(answer) if answer.status().is_success() => {
                    tracing::info!(event = "ack_delivered", client_reference = ack.client_reference);
                }
                Ok(answer) => tracing::warn!(event = "ack_refused", status = answer.status().as_u16()),
                Err(error) => tracing::warn!(event = "ack_lost", %error),
            }
        }
    }
}
