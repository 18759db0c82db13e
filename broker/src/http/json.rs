//! Reading JSON bodies: what is wrong is named by a JSON pointer.

use axum::http::StatusCode;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_path_to_error::{Path, Segment};

use super::error::ApiError;
use super::named::{LIST, Named};

/// Refuses bytes whose brackets nest deeper than `most`, without recursion.
pub(crate) fn check_depth(bytes: &[u8], most: usize) -> Result<(), ApiError> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _other => {}
        }
        if depth > most {
            let detail = format!("the body nests deeper than {most} levels");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "BODY_TOO_DEEP", detail));
        }
    }
    Ok(())
}

/// Reads the whole of `bytes`. Whatever has fields has them by name, at any depth.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        // What is no JSON at all is told first.
        serde_json::from_slice::<IgnoredAny>(bytes).map_err(|error| problem(bytes, "", &error))?;
        let summary = format!("the body is not acceptable: {LIST}");
        let error = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "BODY_INVALID", summary);
        return Err(error.at("", LIST));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(Named(&mut json)).map_err(|error| {
        let pointer = pointer(error.path());
        problem(bytes, &pointer, error.inner())
    })?;
    json.end().map_err(|error| problem(bytes, "", &error))?;
    Ok(value)
}

fn problem(bytes: &[u8], pointer: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    match error.classify() {
        // A number out of range, or where a word is wanted, counts as syntax: look again.
        kind if kind == Category::Data || is_json(bytes) => {
            // The place in the text says less than the pointer.
            let detail = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
            let detail = detail.to_owned();
            let summary = match pointer {
                "" => format!("the body is not acceptable: {detail}"),
                _some => format!("{pointer} is not acceptable: {detail}"),
            };
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "BODY_INVALID", summary)
                .at(pointer, detail)
        }
        _malformed => {
            let detail = format!("the body is not JSON: {text}");
            ApiError::new(StatusCode::BAD_REQUEST, "BODY_MALFORMED", detail).at(pointer, text)
        }
    }
}

/// Whether the bytes are JSON at all, whatever it says.
fn is_json(bytes: &[u8]) -> bool {
    // What is passed over is not checked for UTF-8.
    str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// RFC 6901.
fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        let token = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
            Segment::Enum { variant } => variant.clone(),
            Segment::Unknown => continue,
        };
        pointer.push('/');
        pointer.push_str(&token);
    }
    pointer
}

/// The names of the fields of the object in `bytes`; none if it is no object.
pub(crate) fn fields(bytes: &[u8]) -> Vec<String> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<String>, A::Error> {
            let mut names = Vec::new();
            while let Some((name, IgnoredAny)) = map.next_entry()? {
                names.push(name);
            }
            Ok(names)
        }
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    serde::Deserializer::deserialize_map(&mut json, Names).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_protocol::api::RequestCreate;

    #[test]
    fn brackets_in_text_do_not_nest() {
        assert!(check_depth(br#"{"a":"[[[[\"[["}"#, 1).is_ok());
        assert!(check_depth(b"[[]]", 2).is_ok());
        assert_eq!(check_depth(b"[[[", 2).unwrap_err().code(), "BODY_TOO_DEEP");
    }

    #[test]
    fn what_is_wrong_is_named_by_a_pointer() {
        let rows: [(&str, &str, &str); 12] = [
            (r#"{"duration":60,"models":["h200","H200"]}"#, "/models/1", "BODY_INVALID"),
            (
                r#"{"duration":60,"max_price":{"amount":"x","currency":"EUR"}}"#,
                "/max_price/amount",
                "BODY_INVALID",
            ),
            (r#"{"duration":60,"a/b~c":1}"#, "/a~1b~0c", "BODY_INVALID"),
            ("{}", "", "BODY_INVALID"),
            // Fields by their places are no JSON that anybody documents.
            (r#" ["default"]"#, "", "BODY_INVALID"),
            (r#"["default""#, "", "BODY_MALFORMED"),
            (r#"{"duration":60,"max_price":["1","EUR"]}"#, "/max_price", "BODY_INVALID"),
            (r#"{"duration":60,"defer":[null,true]}"#, "/defer", "BODY_INVALID"),
            (r#"{"duration":60,"class":0}"#, "/class", "BODY_INVALID"),
            (r#"{"duration":1e999}"#, "/duration", "BODY_INVALID"),
            (r#"{"duration":NaN}"#, "/duration", "BODY_MALFORMED"),
            (r#"{"duration":60"#, "", "BODY_MALFORMED"),
        ];
        for (body, pointer, code) in rows {
            let error = read::<RequestCreate>(body.as_bytes()).unwrap_err();
            assert_eq!(error.code(), code, "{body}");
            let problem = error.problem("1");
            assert_eq!(problem.errors[0].pointer.as_deref(), Some(pointer), "{body}: {problem:?}");
        }
    }

    #[test]
    fn the_given_fields_are_named() {
        assert_eq!(fields(br#"{"count":1,"duration":2}"#), ["count", "duration"]);
        assert!(fields(b"[1]").is_empty());
    }
}
