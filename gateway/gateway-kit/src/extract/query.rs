//! Query strings.

use super::decode::percent_decode;
use super::refusal;
use crate::ApiError;
use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
use serde::de::value::{MapDeserializer, StrDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use std::future::{Ready, ready};

/// A query string as a struct: no parameter unknown (where the struct denies it), missing, malformed or given twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequest for Query<T> {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(parse(request.query_string()).map(Self))
    }
}

fn parse<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let mut pairs: Vec<(String, Text)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = percent_decode(name, true).map_err(|reason| ApiError::invalid("query", reason))?;
        let value = percent_decode(value, true).map_err(|reason| ApiError::invalid(name.clone(), reason))?;
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(ApiError::invalid(name, "must not be given twice"));
        }
        pairs.push((name, Text(value)));
    }
    let map = MapDeserializer::<_, de::value::Error>::new(pairs.into_iter());
    serde_path_to_error::deserialize(map).map_err(|error| refusal(error.path(), &error.inner().to_string()))
}

/// A parameter's value: text that is read as whatever the struct asks for.
struct Text(String);

impl IntoDeserializer<'_> for Text {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parsed {
    ($($method:ident => $visit:ident: $type:ty, $what:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            match self.0.parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(de::Error::custom(concat!("must be ", $what))),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Text {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.0)
    }

    parsed! {
        deserialize_bool => visit_bool: bool, "true or false";
        deserialize_i8 => visit_i8: i8, "a whole number from -128 to 127";
        deserialize_i16 => visit_i16: i16, "a whole number from -32768 to 32767";
        deserialize_i32 => visit_i32: i32, "a whole number from -2147483648 to 2147483647";
        deserialize_i64 => visit_i64: i64, "a whole number of 64 bits";
        deserialize_u8 => visit_u8: u8, "a whole number from 0 to 255";
        deserialize_u16 => visit_u16: u16, "a whole number from 0 to 65535";
        deserialize_u32 => visit_u32: u32, "a whole number from 0 to 4294967295";
        deserialize_u64 => visit_u64: u64, "a whole number of 64 bits, not negative";
        deserialize_f64 => visit_f64: f64, "a number";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let text: StrDeserializer<'_, Self::Error> = self.0.as_str().into_deserializer();
        text.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 f32 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Format {
        Jsonl,
        Csv,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Params {
        session_id: String,
        limit: Option<u32>,
        after: Option<u64>,
        format: Option<Format>,
        all: Option<bool>,
    }

    #[test]
    fn parameters_are_read_exactly() {
        let read: Params = parse("session_id=a%2Fb+c&limit=10&format=csv&all=true").unwrap();
        assert_eq!(read.session_id, "a/b c");
        assert_eq!((read.limit, read.after, read.all), (Some(10), None, Some(true)));
        assert_eq!(read.format, Some(Format::Csv));
        assert_eq!(
            parse::<Params>("session_id=%F0%9F%94%92").unwrap().session_id,
            "\u{1f512}"
        );
    }

    #[test]
    fn every_refusal_names_its_parameter() {
        for (query, field) in [
            ("", "session_id"),
            ("limit=1", "session_id"),
            ("session_id=a&limit=x", "limit"),
            ("session_id=a&limit=-1", "limit"),
            ("session_id=a&limit=", "limit"),
            ("session_id=a&limit=4294967296", "limit"),
            ("session_id=a&after=1.5", "after"),
            ("session_id=a&format=xml", "format"),
            ("session_id=a&all=1", "all"),
            ("session_id=a&session_id=b", "session_id"),
            ("session_id=a&wrong=1", "wrong"),
            ("session_id=%zz", "session_id"),
            ("session_id=%FF", "session_id"),
            ("%FF=1", "query"),
        ] {
            let error = parse::<Params>(query).unwrap_err();
            assert_eq!(error.problem("").text("field"), Some(field), "for {query}: {error}");
        }
    }
}
