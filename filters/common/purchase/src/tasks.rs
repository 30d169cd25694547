//! What is under way about money, so that a program that ends lets it end first.
//!
//! What a buyer has begun runs apart from the buyer, and may be between the call that moves money and the row that says so. A crash there is
//! survived: the next run asks again. An end that was ordered need not look like a crash, so whoever ends the program waits for what is
//! here, as long as there is patience.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Where work about money runs, and how much of it there is. Cheap to clone; one for all desks.
#[derive(Clone, Debug)]
pub struct PurchaseTasks {
    runtime: Handle,
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    is_ending: bool,
}

/// One piece of work, for as long as this lives.
#[derive(Debug)]
pub struct PurchaseTask(Arc<watch::Sender<State>>);

impl PurchaseTasks {
    /// Nothing yet; work runs on this runtime.
    pub fn new(runtime: Handle) -> PurchaseTasks {
        PurchaseTasks {
            runtime,
            state: Arc::default(),
        }
    }

    /// Runs work whether or not somebody waits for it. It counts until it ends, in a panic too.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let counted = self.count();
        self.runtime.spawn(async move {
            let done = work.await;
            drop(counted);
            done
        })
    }

    /// Begins what nobody has asked for, such as a look at what is due; `None` once the program ends: the next one does it.
    pub fn background(&self) -> Option<PurchaseTask> {
        let mut begun = false;
        self.state.send_if_modified(|state| {
            begun = !state.is_ending;
            state.count += usize::from(begun);
            begun
        });
        begun.then(|| PurchaseTask(self.state.clone()))
    }

    /// From now on nothing begins that nobody has asked for.
    pub fn close(&self) {
        self.state.send_modify(|state| state.is_ending = true);
    }

    /// Waits until nothing is under way.
    pub async fn wait(&self) {
        let mut state = self.state.subscribe();
        // The sender lives as long as `self` does.
        let _ = state.wait_for(|state| state.count == 0).await;
    }

    /// How much is under way.
    pub fn len(&self) -> usize {
        self.state.borrow().count
    }

    fn count(&self) -> PurchaseTask {
        self.state.send_modify(|state| state.count += 1);
        PurchaseTask(self.state.clone())
    }
}

impl Drop for PurchaseTask {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn an_end_waits_for_what_was_asked_for_and_lets_nothing_else_begin() {
        let tasks = PurchaseTasks::new(Handle::current());
        let (go, gone) = oneshot::channel::<()>();
        let work = tasks.spawn(async move { gone.await.expect("it is told to go") });
        let turn = tasks.background().expect("the program runs");
        assert_eq!(tasks.len(), 2);
        tasks.close();
        assert!(tasks.background().is_none(), "nobody has asked for it");
        let late = tasks.spawn(async { 7 });
        assert_eq!(late.await.expect("a buyer has"), 7);
        drop(turn);
        let landed = tasks.wait();
        tokio::pin!(landed);
        tokio::select! {
            biased;
            () = &mut landed => panic!("something is under way"),
            () = tokio::task::yield_now() => {}
        }
        go.send(()).expect("it waits");
        landed.await;
        work.await.expect("it has ended");
        assert_eq!(tasks.len(), 0);
    }

    #[tokio::test]
    async fn work_that_panics_or_is_cut_off_is_not_waited_for() {
        let tasks = PurchaseTasks::new(Handle::current());
        let panicked = tasks.spawn(async { panic!("a bug") });
        let cut = tasks.spawn(std::future::pending::<()>());
        cut.abort();
        tasks.wait().await;
        assert!(panicked.await.is_err());
    }
}
