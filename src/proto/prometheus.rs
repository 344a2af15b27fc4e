//! Counters as text that Prometheus reads: its exposition format, version 0.0.4. Nothing is
//! registered or served here; the caller says when the text is written, and where to.
//!
//! The hazard is a label with bytes that mean something in the format: a key or an address may
//! contain any of them, so every value of a label is escaped.

use std::fmt::{Display, Write};
use std::time::Duration;

use super::cluster::state::NodeState;
use super::stats::{NodeStats, Stats};

/// The first class with a bucket, up to 64 µs; all faster round trips are in it, too. No network is
/// faster, and every bucket is one more time series for each node.
const FIRST_CLASS: usize = 6;

/// What kind of metric a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A text that is written metric by metric.
///
/// ```
/// use redlatch::prometheus::{Kind, Text};
/// use redlatch::{NodeState, Stats};
///
/// let mut text = Text::default();
/// text.client(&Stats::default(), &[("10.0.0.1:6379", NodeState::Ready)]);
/// text.family("jobs_waiting", Kind::Gauge, "Jobs that wait for the lock.");
/// text.sample("jobs_waiting", &[("key", "nightly")], 3);
/// assert!(text.as_str().ends_with("\njobs_waiting{key=\"nightly\"} 3\n"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    text: String,
    /// The labels that every sample has, before its own.
    labels: Vec<(String, String)>,
}

impl Text {
    /// An empty text in which every sample has these labels, too. A collector that reads the files
    /// of several clients needs them, because it refuses a series that is in two files.
    ///
    /// ```
    /// use redlatch::prometheus::Text;
    ///
    /// let mut text = Text::with_labels(&[("key", "nightly")]);
    /// text.sample("jobs_waiting", &[("host", "a")], 3);
    /// assert_eq!(text.as_str(), "jobs_waiting{key=\"nightly\",host=\"a\"} 3\n");
    /// ```
    pub fn with_labels(labels: &[(&str, &str)]) -> Text {
        let owned = |&(label, of): &(&str, &str)| (label.to_owned(), of.to_owned());
        Text { text: String::new(), labels: labels.iter().map(owned).collect() }
    }

    /// The text so far.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Begins a metric: its samples follow. `help` is one line.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = kind.word();
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Writes a sample of the metric that began last. Names of metrics and labels are written as
    /// they are; values of labels are escaped.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        let Text { text, labels: of_all } = self;
        let of_all = of_all.iter().map(|(label, of)| (&label[..], &of[..]));
        let mut before = '{';
        for (label, of) in of_all.chain(labels.iter().copied()) {
            write_label(text, before, label, of);
            before = ',';
        }
        let end = if before == '{' { "" } else { "}" };
        self.line(format_args!("{end} {value}\n"));
    }

    /// Writes the counters of a client, and the state of each node: `nodes` has their labels and
    /// states, in the order of the list. The names of all metrics begin with `redlatch_`.
    pub fn client(&mut self, stats: &Stats, nodes: &[(&str, NodeState)]) {
        self.attempts(stats);
        self.family("redlatch_locks_held", Kind::Gauge, "Locks that are held now.");
        self.sample("redlatch_locks_held", &[], stats.held);
        let plain = [
            ("redlatch_locks_released_total", "Held locks that were released.", stats.released),
            ("redlatch_extends_total", "Extends by callers that were won.", stats.extended),
            ("redlatch_renewals_total", "Renewals of held locks that were won.", stats.renewed),
            ("redlatch_locks_lost_total", "Held locks that were lost.", stats.lost),
            (
                "redlatch_keys_healed_total",
                "Keys of held locks that a node had lost, and took again.",
                stats.healed,
            ),
            ("redlatch_line_joins_total", "Times that a request joined the line.", stats.joined),
            ("redlatch_line_hand_overs_total", "Locks that were won in line.", stats.handed_over),
            ("redlatch_line_skipped_total", "Waiters that no hand-over reached.", stats.skipped),
            (
                "redlatch_line_messages_ignored_total",
                "Messages on the channel of this client that are no hand-over to it.",
                stats.messages_ignored,
            ),
            ("redlatch_line_claims_total", "Claims of a key that was handed over.", stats.claims),
            ("redlatch_line_splits_total", "Nodes given up for another waiter.", stats.splits),
            ("redlatch_fences_total", "Attempts that got a fencing number.", stats.fenced),
            (
                "redlatch_fence_write_backs_total",
                "Fencing numbers that took a second round trip.",
                stats.written_back,
            ),
        ];
        for (name, help, value) in plain {
            self.family(name, Kind::Counter, help);
            self.sample(name, &[], value);
        }
        let name = "redlatch_wait_seconds";
        self.family(name, Kind::Histogram, "From the request to the lock, waits included.");
        self.histogram(name, None, stats.waits.classes(), stats.waits.total());
        let name = "redlatch_hold_seconds";
        self.family(name, Kind::Histogram, "How long locks were held that are over.");
        self.histogram(name, None, stats.holds.classes(), stats.holds.total());
        self.node_states(nodes);
        let labelled: Vec<(&str, &NodeStats)> =
            nodes.iter().map(|(label, _)| *label).zip(&stats.nodes).collect();
        self.node_counters(&labelled);
        self.node_errors(&labelled);
        self.round_trips(&labelled);
    }

    /// Writes the gauge `redlatch_leader` for each of these elections: whether the candidate of
    /// this process leads, as `Campaign::is_leading` says. Call it once for a text.
    pub fn leaders(&mut self, elections: &[(&str, bool)]) {
        let name = "redlatch_leader";
        self.family(name, Kind::Gauge, "Whether this candidate leads the election.");
        for &(election, leads) in elections {
            self.sample(name, &[("election", election)], u8::from(leads));
        }
    }

    fn attempts(&mut self, stats: &Stats) {
        let name = "redlatch_attempts_total";
        self.family(name, Kind::Counter, "Attempts for a lock, by outcome.");
        let outcomes = [
            ("won", stats.won),
            ("contended", stats.contended),
            ("no_quorum", stats.no_quorum),
            ("expired", stats.expired),
            ("misconfigured", stats.misconfigured),
        ];
        for (outcome, count) in outcomes {
            self.sample(name, &[("outcome", outcome)], count);
        }
    }

    /// Writes the state of each node: whether it can be asked, and whether its grants count.
    /// [`client`](Text::client) writes it, too.
    pub fn node_states(&mut self, nodes: &[(&str, NodeState)]) {
        let name = "redlatch_node_up";
        self.family(name, Kind::Gauge, "Whether the node can be asked.");
        for (label, state) in nodes {
            self.sample(name, &[("node", label)], u8::from(state.is_usable()));
        }
        let name = "redlatch_node_can_grant";
        self.family(name, Kind::Gauge, "Whether the grants of the node count.");
        for (label, state) in nodes {
            self.sample(name, &[("node", label)], u8::from(*state == NodeState::Ready));
        }
    }

    fn node_counters(&mut self, nodes: &[(&str, &NodeStats)]) {
        type Counter = (&'static str, &'static str, fn(&NodeStats) -> u64);
        let counters: [Counter; 7] = [
            ("grants", "Keys that the node granted.", |it| it.grants),
            ("denials", "Keys that the node denied.", |it| it.denials),
            ("connections", "Connections that became ready.", |it| it.connections),
            ("connection_failures", "Connections that were lost or not made.", |it| it.failures),
            ("flushes", "Flushes that the node reported.", |it| it.flushes),
            ("pending_releases_sent", "Releases that were sent late.", |it| {
                it.pending_releases_sent
            }),
            ("pending_releases_dropped", "Releases that were given up.", |it| {
                it.pending_releases_dropped
            }),
        ];
        for (name, help, value) in counters {
            let name = format!("redlatch_node_{name}_total");
            self.family(&name, Kind::Counter, help);
            for (label, stats) in nodes {
                self.sample(&name, &[("node", label)], value(stats));
            }
        }
    }

    fn node_errors(&mut self, nodes: &[(&str, &NodeStats)]) {
        let name = "redlatch_node_errors_total";
        self.family(name, Kind::Counter, "Votes that did not count, by cause.");
        for (label, stats) in nodes {
            for (cause, count) in stats.all_errors() {
                self.sample(name, &[("node", label), ("cause", cause.word())], count);
            }
        }
    }

    fn round_trips(&mut self, nodes: &[(&str, &NodeStats)]) {
        let name = "redlatch_node_round_trip_seconds";
        self.family(name, Kind::Histogram, "From writing a question about a key to its answer.");
        for (label, stats) in nodes {
            // The first class that is written also has the counts of all classes before it.
            let mut before = 0;
            let classes =
                stats.round_trips.classes().enumerate().filter_map(|(class, (end, n))| {
                    before += n;
                    (class >= FIRST_CLASS).then(|| (end, std::mem::take(&mut before)))
                });
            self.histogram(name, Some(label), classes, stats.round_trips.total());
        }
    }

    /// Writes a histogram, of a node if there is a label.
    fn histogram(
        &mut self,
        name: &str,
        node: Option<&str>,
        classes: impl Iterator<Item = (Option<Duration>, u64)>,
        total: Duration,
    ) {
        let label: Vec<(&str, &str)> = node.iter().map(|&node| ("node", node)).collect();
        let bucket = format!("{name}_bucket");
        let mut count = 0;
        for (below, more) in classes {
            count += more;
            let end = below.map_or("+Inf".to_owned(), |end| end.as_secs_f64().to_string());
            let labels: Vec<(&str, &str)> =
                label.iter().copied().chain([("le", &end[..])]).collect();
            self.sample(&bucket, &labels, count);
        }
        self.sample(&format!("{name}_sum"), &label, total.as_secs_f64());
        self.sample(&format!("{name}_count"), &label, count);
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a String takes every text");
    }
}

fn write_label(text: &mut String, before: char, label: &str, of: &str) {
    text.push(before);
    text.push_str(label);
    text.push_str("=\"");
    for character in of.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            plain => text.push(plain),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::super::error::{NodeError, NodeReply};
    use super::super::node_set::NodeId;
    use super::super::time::Instant;
    use super::*;

    #[test]
    fn prometheus_text_has_every_counter_with_its_labels() {
        let mut stats = Stats::of(2);
        (stats.won, stats.lost) = (7, 1);
        let micros = Duration::from_micros;
        stats.answered(NodeId::new(0), true, NodeReply::Granted, micros(100));
        stats.answered(NodeId::new(0), true, NodeReply::Held, micros(10));
        stats.failed(NodeId::new(1), NodeError::Silent);
        stats.handed_out(micros(100));
        stats.handed_out(micros(100));
        stats.note_hold(Duration::from_secs(3));
        let until = NodeState::Quarantined(Instant::default());
        let mut text = Text::default();
        text.client(&stats, &[("a:1", NodeState::Ready), ("b:1", until)]);
        text.leaders(&[("scheduler", true), ("mail", false)]);
        for line in [
            "redlatch_attempts_total{outcome=\"won\"} 9",
            "# TYPE redlatch_attempts_total counter",
            "# TYPE redlatch_locks_held gauge",
            "redlatch_locks_held 1",
            "redlatch_locks_released_total 0",
            "redlatch_wait_seconds_bucket{le=\"0.000064\"} 0",
            "redlatch_wait_seconds_bucket{le=\"0.000128\"} 2",
            "redlatch_wait_seconds_bucket{le=\"+Inf\"} 2",
            "redlatch_wait_seconds_sum 0.0002",
            "redlatch_hold_seconds_bucket{le=\"2.097152\"} 0",
            "redlatch_hold_seconds_bucket{le=\"4.194304\"} 1",
            "redlatch_hold_seconds_count 1",
            "redlatch_locks_lost_total 1",
            "redlatch_node_up{node=\"b:1\"} 1",
            "redlatch_node_can_grant{node=\"a:1\"} 1",
            "redlatch_node_can_grant{node=\"b:1\"} 0",
            "redlatch_node_grants_total{node=\"a:1\"} 1",
            "redlatch_node_errors_total{node=\"b:1\",cause=\"silent\"} 1",
            "redlatch_node_round_trip_seconds_bucket{node=\"a:1\",le=\"0.000064\"} 1",
            "redlatch_node_round_trip_seconds_bucket{node=\"a:1\",le=\"0.000128\"} 2",
            "redlatch_node_round_trip_seconds_bucket{node=\"a:1\",le=\"+Inf\"} 2",
            "redlatch_node_round_trip_seconds_sum{node=\"a:1\"} 0.00011",
            "redlatch_node_round_trip_seconds_count{node=\"a:1\"} 2",
            "redlatch_leader{election=\"scheduler\"} 1",
            "redlatch_leader{election=\"mail\"} 0",
        ] {
            assert!(text.as_str().lines().any(|it| it == line), "{line}: {}", text.as_str());
        }
        // Each sample stands under the type of its metric, and each metric begins once.
        let mut begun = Vec::new();
        for line in text.as_str().lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, _) = rest.split_once(' ').expect("a name and a type");
                assert!(!begun.contains(&name), "{name} begins twice");
                begun.push(name);
            } else if !line.starts_with('#') {
                assert!(line.starts_with(begun.last().expect("a metric")), "{line}");
            }
        }
    }

    #[test]
    fn prometheus_text_escapes_labels() {
        let mut text = Text::default();
        text.sample("m", &[("key", "a\"b\\c\nd"), ("x", "")], 1.5);
        assert_eq!(text.as_str(), "m{key=\"a\\\"b\\\\c\\nd\",x=\"\"} 1.5\n");
        let mut text = Text::with_labels(&[("job", "a\"")]);
        text.sample("m", &[], 1);
        text.sample("m", &[("x", "y")], 2);
        assert_eq!(text.as_str(), "m{job=\"a\\\"\"} 1\nm{job=\"a\\\"\",x=\"y\"} 2\n");
    }
}
