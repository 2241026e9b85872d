//! What pages load: out of this binary, under names that hold the hash of what they are, so that they may be kept for ever.

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// How much of the hash stands in a name, in bytes.
const HASH_BYTES: usize = 8;

/// One file.
pub(crate) struct Asset {
    path: String,
    kind: &'static str,
    text: &'static str,
}

impl Asset {
    fn new(name: &str, extension: &str, kind: &'static str, text: &'static str) -> Self {
        let hash = hex::encode(&Sha256::digest(text.as_bytes())[..HASH_BYTES]);
        Self {
            path: format!("/assets/{name}-{hash}.{extension}"),
            kind,
            text,
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

pub(crate) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "console",
        "css",
        "text/css; charset=utf-8",
        include_str!("../assets/console.css"),
    )
});
pub(crate) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "console",
        "js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/console.js"),
    )
});
pub(crate) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("../assets/icon.svg")));

/// The file at this path; none where there is none, or where it was another version's.
pub(crate) fn serve(path: &str) -> Option<HttpResponse> {
    let asset = [&*STYLE, &*SCRIPT, &*ICON]
        .into_iter()
        .find(|asset| asset.path == path)?;
    Some(
        HttpResponse::Ok()
            .insert_header((CONTENT_TYPE, asset.kind))
            .insert_header((CACHE_CONTROL, "public, max-age=31536000, immutable"))
            .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .body(asset.text),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_its_content_and_nothing_foreign_is_loaded() {
        assert!(serve(STYLE.path()).is_some() && serve(SCRIPT.path()).is_some());
        assert!(serve("/assets/console-0000000000000000.css").is_none());
        for asset in [&*STYLE, &*SCRIPT] {
            assert!(!asset.text.contains("http://") && !asset.text.contains("https://"));
            assert!(!asset.text.contains("@import") && !asset.text.contains("eval("));
        }
    }

    /// The relative luminance of a colour `#rrggbb` (WCAG 2.2).
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.040_45 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    /// The custom properties of a block of the style sheet.
    fn colours(block: &str) -> std::collections::BTreeMap<&str, &str> {
        block
            .lines()
            .filter_map(|line| line.trim().strip_prefix("--")?.strip_suffix(';')?.split_once(": "))
            .collect()
    }

    /// Every pair of text and ground that the style sheet uses has at least 4.5:1 (AA), lines of controls 3:1, light and dark.
    #[test]
    fn contrast_is_enough_in_light_and_dark() {
        let text = STYLE.text;
        let (light, dark) = text.split_once("@media (prefers-color-scheme: dark)").unwrap();
        let dark = dark.split_once("}\n}").unwrap().0;
        for (name, block) in [("light", light), ("dark", dark)] {
            let colours = colours(block);
            let colour = |name: &str| *colours.get(name).unwrap_or_else(|| panic!("no --{name}"));
            for ground in ["ground", "raised", "stripe"] {
                for ink in ["ink", "quiet", "link", "good", "bad", "warn"] {
                    let ratio = contrast(colour(ink), colour(ground));
                    assert!(ratio >= 4.5, "{name}: --{ink} on --{ground} has {ratio:.2}");
                }
                let ratio = contrast(colour("focus"), colour(ground));
                assert!(ratio >= 3.0, "{name}: --focus on --{ground} has {ratio:.2}");
            }
            for (ink, ground) in [
                ("good", "good-ground"),
                ("bad", "bad-ground"),
                ("warn", "warn-ground"),
                ("ink", "bad-ground"),
                ("ink", "good-ground"),
                ("ink", "warn-ground"),
                ("link", "bad-ground"),
                ("quiet", "bad-ground"),
                ("on-action", "action"),
            ] {
                let ratio = contrast(colour(ink), colour(ground));
                assert!(ratio >= 4.5, "{name}: --{ink} on --{ground} has {ratio:.2}");
            }
            for ground in ["ground", "raised"] {
                let ratio = contrast(colour("line-strong"), colour(ground));
                assert!(ratio >= 3.0, "{name}: --line-strong on --{ground} has {ratio:.2}");
            }
        }
    }
}
