//! "Did you mean …": ids by unique prefix, and the nearest known word to an unknown one.

use crate::failure::{Exit, Failure, Outcome};

/// Words at least this alike are suggested (Jaro–Winkler; clap uses 0.7 for its own).
const ALIKE: f64 = 0.7;
/// Of so many characters one may be mistyped in an id that is still meant.
const CHARS_PER_TYPO: usize = 4;
/// Most suggestions at once.
const SUGGESTIONS_MAX: usize = 3;

/// The known words most like `word`, best first.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let scored = known.into_iter().map(|known| (strsim::jaro_winkler(word, known), known));
    let mut alike: Vec<(f64, &str)> = scored.filter(|(score, _)| *score >= ALIKE).collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    alike.dedup_by(|a, b| a.1 == b.1);
    alike.into_iter().take(SUGGESTIONS_MAX).map(|(_, known)| known).collect()
}

/// The one of `ids` that `given` means: all of it, a unique prefix, or that without its letter
/// (`4x7` for `l-4x7…`). `kind` is a word as "lease".
pub(crate) fn by_prefix(kind: &str, given: &str, ids: &[String]) -> Outcome<String> {
    let bare = given.to_lowercase();
    let is_match = |id: &&String| {
        id.starts_with(&bare) || id.split_once('-').is_some_and(|(_, rest)| rest.starts_with(&bare))
    };
    if let Some(same) = ids.iter().find(|id| **id == bare) {
        return Ok(same.clone());
    }
    let matches: Vec<&String> = ids.iter().filter(is_match).collect();
    match matches.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(unknown(kind, given, ids)),
        several => {
            let shown: Vec<&str> =
                several.iter().take(SUGGESTIONS_MAX).map(|id| id.as_str()).collect();
            let what = format!("{given:?} begins {} ids", several.len());
            Err(Failure::usage(what)
                .because(format!("among them {}", shown.join(", ")))
                .hint("give more characters of the id"))
        }
    }
}

/// The failure for an id that nothing has.
pub(crate) fn unknown(kind: &str, given: &str, ids: &[String]) -> Failure {
    let failure = Failure::new(Exit::NotFound, format!("there is no {kind} {given:?}"));
    let near = nearest(given, ids.iter().map(String::as_str));
    match near.into_iter().find(|id| is_typo(given, id)) {
        Some(best) => failure.hint(format!("did you mean {best}?")),
        None => failure,
    }
}

/// Whether `given` is `id`, or a beginning of it, but for typing errors: random ids are all a little
/// alike.
fn is_typo(given: &str, id: &str) -> bool {
    let length = given.chars().count();
    let start: String = id.chars().take(length).collect();
    let errors = strsim::osa_distance(given, id).min(strsim::osa_distance(given, &start));
    errors <= (length / CHARS_PER_TYPO).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<String> {
        ["l-0abc", "l-0abd", "l-7xyz"].map(str::to_owned).to_vec()
    }

    #[test]
    fn an_id_is_found_by_a_unique_prefix_with_or_without_its_letter() {
        for given in ["l-7", "7x", "7xyz", "l-7xyz", "L-7"] {
            assert_eq!(by_prefix("lease", given, &ids()).unwrap(), "l-7xyz", "{given}");
        }
    }

    #[test]
    fn a_prefix_of_several_is_refused_and_names_them() {
        let failure = by_prefix("lease", "0ab", &ids()).unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage);
        assert!(failure.to_string().contains("l-0abc, l-0abd"), "{failure}");
    }

    #[test]
    fn an_unknown_id_is_not_found_and_the_nearest_is_named() {
        let failure = by_prefix("lease", "l-7xzy", &ids()).unwrap_err();
        assert_eq!(failure.exit(), Exit::NotFound);
        assert!(failure.to_string().contains("did you mean l-7xyz?"), "{failure}");
    }

    #[test]
    fn a_random_id_that_is_only_a_little_alike_is_not_suggested() {
        let ids = ["r-1gqxyhmp1zxnr532g3f0k6k3y7", "l-3g9c0fz510fwn100antekwkpwz"];
        let ids = ids.map(str::to_owned);
        for given in ["xyz", "l-0000", "zzzz"] {
            let failure = by_prefix("lease", given, &ids).unwrap_err();
            assert!(!failure.to_string().contains("did you mean"), "{given}: {failure}");
        }
        let failure = by_prefix("lease", "l-3g9c0zf5", &ids).unwrap_err();
        assert!(failure.to_string().contains("did you mean l-3g9c"), "{failure}");
    }
}
