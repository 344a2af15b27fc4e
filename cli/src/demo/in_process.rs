//! Five masters inside this process, for a machine without Redis. The demo freezes, kills and
//! inspects them by function calls, but a real server by signals and over a connection.

use redlatch::testing::master::Restart;
use redlatch::testing::tcp::{self, LocalMaster};

use super::Stop;
use super::masters::{COUNT, Masters, Seen};

/// Five of the masters that the library has for tests.
pub struct InProcess {
    masters: tcp::Masters,
    states: [State; COUNT],
}

/// The last thing that was done to a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Frozen,
    Dead,
}

impl InProcess {
    pub fn start() -> Result<InProcess, Stop> {
        let masters = tcp::Masters::start(COUNT)
            .map_err(|error| Stop::Failed(format!("masters cannot be started: {error}")))?;
        Ok(InProcess { masters, states: [State::Running; COUNT] })
    }
}

impl Masters for InProcess {
    fn describe(&self) -> String {
        let port = |master: &LocalMaster| master.address().port().to_string();
        let ports: Vec<String> = self.masters.iter().map(port).collect();
        format!("Five small masters inside this process, on its ports {}.", ports.join(" "))
    }

    fn urls(&self) -> Vec<String> {
        self.masters.urls()
    }

    fn freeze(&mut self, node: usize) -> Result<String, Stop> {
        self.masters[node].freeze();
        self.states[node] = State::Frozen;
        Ok("it takes bytes and does nothing".into())
    }

    fn thaw(&mut self, node: usize) -> Result<String, Stop> {
        self.masters[node].thaw();
        self.states[node] = State::Running;
        Ok("with what came meanwhile".into())
    }

    fn kill(&mut self, node: usize) -> Result<String, Stop> {
        self.masters[node].kill();
        self.states[node] = State::Dead;
        Ok("its port refuses".into())
    }

    fn restart(&mut self, node: usize) -> Result<String, Stop> {
        let failed = |error| Stop::Failed(format!("node {} cannot come back: {error}", node + 1));
        self.masters[node].restart(Restart::Empty).map_err(failed)?;
        self.states[node] = State::Running;
        Ok("on the same port".into())
    }

    fn inspect(&mut self, node: usize) -> Result<Seen, Stop> {
        match self.states[node] {
            State::Frozen => return Ok(Seen::Frozen),
            State::Dead => return Ok(Seen::Dead),
            State::Running => {}
        }
        let master = &self.masters[node];
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let keys = master.keys().into_iter();
        // A key that expires after the list was read is left out.
        let held = keys.filter_map(|key| Some((text(&key), text(&master.get(&key)?))));
        Ok(Seen::Keys(held.collect()))
    }
}
