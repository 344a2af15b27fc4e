//! What else happens on the machine: its load, and what the hypervisor takes.

/// The load averages: how many processes want the processors, over one, five and fifteen minutes.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let numbers: Vec<&str> = text.split(' ').take(3).collect();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    format!("{} on {cpus} processors", numbers.join(" "))
}

/// The time that the hypervisor took from this machine since its start, and the total time, in
/// ticks.
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    pub fn now() -> Ticks {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // The fields are user nice system idle iowait irq softirq steal; the fields after these are
        // parts of the first two.
        let fields = line.split_ascii_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        Ticks { stolen: ticks.get(7).copied().unwrap_or(0), all: ticks.iter().sum() }
    }

    /// The part of the time since `self` that the hypervisor took.
    pub fn stolen_since(self) -> f64 {
        let now = Ticks::now();
        (now.stolen - self.stolen) as f64 / (now.all - self.all).max(1) as f64
    }
}
