//! Figures of two trees, turn by turn, and how they are found in what programs print.

use crate::spread::Spread;
use serde_json::{Value as Json, json};

/// What was found in one turn of one tree: figures by their names.
pub type TurnFigures = Vec<(String, f64)>;

/// One figure of both trees, by turns.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedFigure {
    /// What it is.
    pub name: String,
    /// Of the other tree.
    pub base: Vec<f64>,
    /// Of this tree.
    pub current: Vec<f64>,
}

impl ComparedFigure {
    /// Returns the figure of this tree as a multiple of that of the base, turn by turn.
    ///
    /// # Panics
    /// When there are no turns.
    #[must_use]
    pub fn ratio(&self) -> Spread {
        Spread::of(self.current.iter().zip(&self.base).map(|(current, base)| current / base))
    }

    /// Returns a JSON object with the spreads of both trees and of the ratio.
    ///
    /// # Panics
    /// When there are no turns.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "figure": self.name,
            "base": Spread::of(self.base.iter().copied()).to_json(),
            "current": Spread::of(self.current.iter().copied()).to_json(),
            "ratio": self.ratio().to_json(),
        })
    }
}

/// Returns the figures that both trees have in every turn.
#[must_use]
pub fn joined(base: &[TurnFigures], current: &[TurnFigures]) -> Vec<ComparedFigure> {
    let all = |turns: &[TurnFigures], name: &str| -> Option<Vec<f64>> {
        turns
            .iter()
            .map(|turn| turn.iter().find(|(found, _)| found == name).map(|(_, value)| *value))
            .collect()
    };
    let names = current.first().into_iter().flatten().map(|(name, _)| name.clone());
    names
        .filter_map(|name| {
            let (base, current) = (all(base, &name)?, all(current, &name)?);
            Some(ComparedFigure { name, base, current })
        })
        .collect()
}

/// Returns the instructions in a file of callgrind.
#[must_use]
pub fn counted(file: &str) -> Option<u64> {
    file.lines().find_map(|line| line.strip_prefix("summary: "))?.trim().parse().ok()
}

/// Returns the time in a line such as `65536 answers, 287 bytes each, 96.4 ns each`.
#[must_use]
pub fn nanoseconds(text: &str) -> Option<f64> {
    let before = text.trim_end().strip_suffix(" ns each")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Returns the ratios in a report of `side-by-side`: the rate of `handled` as a multiple of that of
/// each name server, and its share of the ceiling.
#[must_use]
pub fn ratios(report: &Json) -> TurnFigures {
    let results: Vec<&Json> = report["results"].as_array().into_iter().flatten().collect();
    let text = |result: &Json, name: &str| result[name].as_str().unwrap_or_default().to_owned();
    let rate = |result: &Json| result["answers_per_s"]["median"].as_f64();
    let mut figures = Vec::new();
    for ours in results.iter().filter(|result| text(result, "server").starts_with("handled")) {
        let (load, server) = (text(ours, "load"), text(ours, "server"));
        if let Some(share) = ours["share_of_ceiling_by_cpu"]["median"].as_f64() {
            figures.push((format!("{load}: {server}, share of the ceiling by processor time"), share));
        }
        let is_rival = |result: &&&Json| {
            let other = text(result, "server");
            text(result, "load") == load && !other.starts_with("handled") && !other.starts_with("echo")
        };
        for rival in results.iter().filter(is_rival) {
            if let (Some(ours), Some(theirs)) = (rate(ours), rate(rival)) {
                figures.push((format!("{load}: {server} / {}", text(rival, "server")), ours / theirs));
            }
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_both_trees_have_are_compared_turn_by_turn() {
        let turn = |figures: &[(&str, f64)]| -> TurnFigures {
            figures.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
        };
        let base = [turn(&[("a", 2.0), ("gone", 1.0)]), turn(&[("a", 4.0), ("gone", 1.0)])];
        let current = [turn(&[("a", 3.0), ("new", 1.0)]), turn(&[("a", 4.0), ("new", 1.0)])];
        let joined = joined(&base, &current);
        let expected = ComparedFigure { name: "a".to_owned(), base: vec![2.0, 4.0], current: vec![3.0, 4.0] };
        assert_eq!(joined, [expected]);
        assert_eq!(joined[0].ratio(), Spread { median: 1.25, min: 1.0, max: 1.5 });
    }

    #[test]
    fn figures_are_found_in_what_programs_print() {
        assert_eq!(nanoseconds("65536 answers, 287 bytes each, 96.4 ns each\n"), Some(96.4));
        assert_eq!(nanoseconds("nothing"), None);
        assert_eq!(counted("version: 1\nsummary: 55574528\n"), Some(55_574_528));
        assert_eq!(counted("version: 1\n"), None);
        let result = |server: &str, rate: f64, share: Json| {
            json!({ "load": "one at a time", "server": server, "answers_per_s": { "median": rate },
                "share_of_ceiling_by_cpu": share })
        };
        let report = json!({ "results": [
            result("echo, io_uring", 500.0, Json::Null),
            result("handled, io_uring", 400.0, json!({ "median": 0.9 })),
            result("NSD", 200.0, Json::Null),
        ] });
        let expected = [
            ("one at a time: handled, io_uring, share of the ceiling by processor time".to_owned(), 0.9),
            ("one at a time: handled, io_uring / NSD".to_owned(), 2.0),
        ];
        assert_eq!(ratios(&report), expected);
    }
}
