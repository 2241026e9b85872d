//! W3C trace context: where a piece of work belongs, passed along explicitly with every message and every call.

use host_kit::Random;
use std::fmt;

/// Where a piece of work belongs: W3C trace context (NFR-08). Passed along explicitly with every message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
}

impl TraceContext {
    /// The beginning of a new trace.
    #[must_use]
    pub fn root(random: &Random) -> Self {
        Self {
            // All zeros is no valid id; the chance of meeting it is nil, the cost of excluding it as well.
            trace_id: random.u128().max(1).to_be_bytes(),
            span_id: random.u64().max(1).to_be_bytes(),
        }
    }

    /// A new span of the same trace.
    #[must_use]
    pub fn child(&self, random: &Random) -> Self {
        self.with_span(random.u64())
    }

    pub(crate) fn with_span(&self, span: u64) -> Self {
        Self {
            trace_id: self.trace_id,
            span_id: span.max(1).to_be_bytes(),
        }
    }

    /// Reads the header `traceparent`. None when it is not well formed: then a new trace begins.
    #[must_use]
    pub fn from_traceparent(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Version ff is forbidden; 00 has exactly four parts; later versions may have more.
        if version.len() != 2 || version == "ff" || flags.len() != 2 || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let [_] = unhex::<1>(version)?;
        let [_] = unhex::<1>(flags)?;
        let context = Self {
            trace_id: unhex(trace)?,
            span_id: unhex(span)?,
        };
        (context.trace_id != [0; 16] && context.span_id != [0; 8]).then_some(context)
    }

    /// The header `traceparent` for the next hop.
    #[must_use]
    pub fn to_traceparent(&self) -> String {
        format!("00-{}-{}-01", Hex(&self.trace_id), Hex(&self.span_id))
    }

    /// The trace's id as 32 hexadecimal digits, as logged and answered.
    #[must_use]
    pub fn trace_id_hex(&self) -> String {
        Hex(&self.trace_id).to_string()
    }

    /// The span's id as 16 hexadecimal digits.
    #[must_use]
    pub fn span_id_hex(&self) -> String {
        Hex(&self.span_id).to_string()
    }

    /// The span's id.
    #[must_use]
    pub const fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// The trace's id.
    #[must_use]
    pub const fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_traceparent())
    }
}

pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Lower case only, as the W3C recommendation demands.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_survives_a_hop() {
        let context = TraceContext::from_traceparent(HEADER).unwrap();
        assert_eq!(context.to_traceparent(), HEADER);
        assert_eq!(context.trace_id_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let child = context.child(&Random::seeded(1));
        assert_eq!(child.trace_id(), context.trace_id());
        assert_ne!(child.span_id(), context.span_id());
        // A later version may say more.
        assert!(TraceContext::from_traceparent(&format!("01{}-x", &HEADER[2..])).is_some());
    }

    #[test]
    fn what_is_no_traceparent_begins_a_new_trace() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::from_traceparent(bad), None, "{bad:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic_and_what_it_takes_it_gives_back(text in "\\PC{0,70}") {
            if let Some(context) = TraceContext::from_traceparent(&text) {
                prop_assert_eq!(TraceContext::from_traceparent(&context.to_traceparent()), Some(context));
            }
        }
    }
}
