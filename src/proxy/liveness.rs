//! Liveness of the workers: a probe to be answered by each worker's event loop.
//!
//! A stuck worker, in a filter with a blocked thread or in an endless loop, does not answer. The prober runs on another thread and waits
//! with a time limit. Any number of probes at a stuck worker is one number in its channel.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Probes the workers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Liveness {
    workers: Arc<[Probe]>,
}

/// The probing side of one worker.
struct Probe {
    /// The number of the latest probe, and of the latest that was answered.
    asked: watch::Sender<u64>,
    answered: watch::Receiver<u64>,
}

/// The answering side. Each worker runs [`Responder::respond`].
pub(crate) struct Responder {
    asked: watch::Receiver<u64>,
    answered: watch::Sender<u64>,
}

impl Liveness {
    /// Probes for this many workers, and their responders, in equal order.
    pub(crate) fn new(workers: usize) -> (Liveness, Vec<Responder>) {
        let pair = |_| {
            let (ask, asked) = watch::channel(0);
            let (answer, answered) = watch::channel(0);
            let probe = Probe {
                asked: ask,
                answered,
            };
            let responder = Responder {
                asked,
                answered: answer,
            };
            (probe, responder)
        };
        let (probes, responders): (Vec<_>, Vec<_>) = (0..workers).map(pair).unzip();
        let workers = probes.into();
        (Liveness { workers }, responders)
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The indices of the workers without an answer within `limit`.
    pub(crate) async fn unresponsive(&self, limit: Duration) -> Vec<usize> {
        // The workers are probed at once.
        let answers = self.workers.iter().map(|probe| probe.answers(limit));
        let answers = futures_util::future::join_all(answers).await;
        let unresponsive = answers.iter().enumerate();
        unresponsive
            .filter_map(|(number, answers)| (!answers).then_some(number))
            .collect()
    }
}

impl Probe {
    /// Whether the worker answers a new probe within `limit`.
    async fn answers(&self, limit: Duration) -> bool {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        let mut answered = self.answered.clone();
        let answer = answered.wait_for(|answered| *answered >= number);
        // An answer that can never arrive counts as missing: the worker's thread has ended.
        matches!(tokio::time::timeout(limit, answer).await, Ok(Ok(_)))
    }
}

impl Responder {
    /// Answers until no prober is left.
    pub(crate) async fn respond(mut self) {
        while self.asked.changed().await.is_ok() {
            let asked = *self.asked.borrow_and_update();
            self.answered.send_replace(asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any answer takes.
    const LONG: Duration = Duration::from_secs(60);
    /// The wait for missing answers.
    const SHORT: Duration = Duration::from_millis(20);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    }

    #[test]
    fn stuck_and_ended_workers_are_unresponsive_until_they_run() {
        let (liveness, mut responders) = Liveness::new(3);
        assert_eq!(liveness.workers(), 3);
        drop(responders.remove(2));
        let stuck = responders.remove(1);
        let running = responders.remove(0);
        runtime().block_on(async {
            tokio::spawn(running.respond());
            assert_eq!(liveness.unresponsive(SHORT).await, [1, 2]);
            assert_eq!(liveness.unresponsive(SHORT).await, [1, 2]);
            tokio::spawn(stuck.respond());
            assert_eq!(liveness.unresponsive(LONG).await, [2]);
        });
    }

    #[test]
    fn workers_answer_from_threads_of_their_own() {
        let (liveness, responders) = Liveness::new(4);
        let threads: Vec<_> = responders
            .into_iter()
            .map(|responder| std::thread::spawn(|| runtime().block_on(responder.respond())))
            .collect();
        runtime().block_on(async {
            let none: [usize; 0] = [];
            let asked = tokio::join!(liveness.unresponsive(LONG), liveness.unresponsive(LONG));
            assert_eq!(
                (asked.0.as_slice(), asked.1.as_slice()),
                (&none[..], &none[..])
            );
        });
        drop(liveness);
        for thread in threads {
            thread.join().expect("it ends with the last prober");
        }
    }
}
