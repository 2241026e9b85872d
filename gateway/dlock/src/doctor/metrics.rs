//! What `/metrics` says, as far as a check needs it.

/// The samples of one scrape.
#[derive(Debug, Default)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads the Prometheus text format; a line that is none is left out.
    pub fn parse(text: &str) -> Self {
        let samples = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect();
        Self(samples)
    }

    /// One sample by its name with its labels, as it is written: `fencing_enabled{point="rail"}`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }

    /// The sum over all labels of a name; none where there is no such sample.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let of = |found: &str| found.split('{').next() == Some(name);
        let mut values = self.0.iter().filter(|(found, _)| of(found)).map(|(_, value)| *value);
        let first = values.next()?;
        Some(values.fold(first, |sum, value| sum + value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_and_summed_over_labels() {
        let text = "# HELP a A.\na{x=\"1\"} 2\na{x=\"2\"} 3.5\nab 7\nbroken\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.get("a{x=\"2\"}"), Some(3.5));
        assert_eq!(
            (metrics.sum("a"), metrics.sum("ab"), metrics.sum("c")),
            (Some(5.5), Some(7.0), None)
        );
    }
}
