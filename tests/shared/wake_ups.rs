//! Calls while nothing else would wake the client: no probe, no timeout, no connection that is
//! lost. Nothing makes up for a lost wake-up: the watchdog then ends the test.

use super::*;
use executor::Task;
use redlatch::testing::tcp::Masters;
use std::sync::mpsc;
use std::task::Poll;

const HOUR: Duration = Duration::from_secs(3600);

/// A client without a timer that fires within an hour.
fn client_without_timers(urls: Vec<String>) -> Config {
    let config = Config::new(urls).unwrap().restart_guard(RestartGuard::Off);
    let config = config.node_timeout(HOUR).connect_timeout(HOUR);
    config.probe_interval(HOUR).reset_after(HOUR)
}

fn within_a_minute(what: &str, act: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let acts = std::thread::spawn(move || {
        act();
        sender.send(()).expect("the test waits");
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = receiver.recv_timeout(60 * SECOND) {
        panic!("{what}: a wake-up was lost");
    }
    acts.join().expect("it does not panic");
}

/// Acquires and releases locks one after the other. In some pauses between them the driver falls
/// asleep.
fn lock_and_release_repeatedly(client: &SharedClient, name: usize, count: usize) {
    for number in 0..count {
        let guard = client.lock(format!("{name}:{number}"), 60 * SECOND).wait().unwrap();
        guard.release().wait().unwrap();
        if number % 50 == 0 {
            std::thread::sleep(millis(5));
        }
    }
}

#[test]
fn each_call_is_answered_though_nothing_else_happens() {
    let fleet = Fleet::start(3);
    let client = ready::shared(client_without_timers(fleet.urls()));
    within_a_minute("one thread", {
        let client = client.clone();
        move || lock_and_release_repeatedly(&client, 0, 500)
    });
    within_a_minute("threads at once", move || {
        std::thread::scope(|scope| {
            for name in 1..9 {
                let client = &client;
                scope.spawn(move || lock_and_release_repeatedly(client, name, 100));
            }
        });
    });
}

/// The nodes may answer before the driver sleeps for the first time.
#[test]
fn first_call_after_connect_is_answered_though_nothing_else_happens() {
    for _ in 0..40 {
        let masters = Masters::start(5).unwrap();
        let config = client_without_timers(masters.urls());
        in_time("the first call", || {
            let client = SharedClient::connect_blocking(config).unwrap();
            client.lock("a", 60 * SECOND).wait().unwrap().release().wait().unwrap();
        });
    }
}

/// A future that is polled, and then dropped at once, after a wake-up, or when it has its lock.
fn drop_a_future(client: &SharedClient, name: usize, dice: &mut Dice) {
    let mut call = Task::pending(client.lock(format!("future {name}"), 60 * SECOND));
    let fate = dice.roll(3);
    while fate > 0 && !call.is_woken() {
        std::thread::yield_now();
    }
    if fate == 2 {
        assert!(matches!(call.poll(), Poll::Ready(Ok(_))), "no other call wants this key");
    }
}

/// Some calls drive the client themselves, some wake the driver, some find the driver awake. Other
/// calls are dropped before they fetch their results.
#[test]
fn each_call_of_many_threads_and_futures_is_answered_though_nothing_else_happens() {
    let fleet = Fleet::start(3);
    let client = ready::shared(client_without_timers(fleet.urls()));
    let mut dice = Dice::of_this_run();
    for threads in [2, 5, 16, 48] {
        let (client, mut dice) = (client.clone(), dice.others());
        within_a_minute("threads and futures", move || {
            std::thread::scope(|scope| {
                for name in 0..threads {
                    let (client, mut dice) = (&client, dice.others());
                    scope.spawn(move || {
                        for _ in 0..20 {
                            lock_and_release_repeatedly(client, name, 1 + dice.roll(10) as usize);
                            drop_a_future(client, name, &mut dice);
                        }
                    });
                }
            });
        });
    }
    fleet.wait_empty();
}

/// Acquires and releases, by a task.
#[cfg(feature = "tokio")]
async fn pairs_of_a_task(client: SharedClient, name: usize, count: usize) {
    for number in 0..count {
        let guard = client.lock(format!("{name}:{number}"), 60 * SECOND).await.unwrap();
        guard.release().await.unwrap();
        if number % 50 == 0 {
            tokio::time::sleep(millis(5)).await;
        }
    }
}

#[cfg(feature = "tokio")]
#[test]
fn each_call_of_a_task_is_answered_though_nothing_else_happens() {
    let mut several = tokio::runtime::Builder::new_multi_thread();
    several.worker_threads(2);
    for mut builder in [tokio::runtime::Builder::new_current_thread(), several] {
        let fleet = Fleet::start(3);
        let runtime = builder.enable_all().build().unwrap();
        within_a_minute("tasks", move || {
            runtime.block_on(async {
                let client =
                    SharedClient::connect_tokio(client_without_timers(fleet.urls())).await.unwrap();
                ready::all_ready(&client).await;
                pairs_of_a_task(client.clone(), 0, 200).await;
                let mut tasks = tokio::task::JoinSet::new();
                for name in 1..9 {
                    tasks.spawn(pairs_of_a_task(client.clone(), name, 100));
                }
                while let Some(ended) = tasks.join_next().await {
                    ended.unwrap();
                }
            });
        });
    }
}
