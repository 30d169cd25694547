//! First phase: the sockets of the listeners.

use std::sync::Arc;

use super::inputs::Inputs;
use crate::admin;
use crate::database::{self, Opener};
use crate::gateway::StartError;
use crate::gateway::upgrade::{AdoptedAdmin, Earlier, Predecessor};
use crate::proxy::{AcmeChallenges, Bound, report_accept_queue};

/// The bound sockets, and the predecessor that handed over some of the sockets.
pub(super) struct Sockets {
    /// In the order of the settings.
    bound: Vec<Bound>,
    /// The sockets for requests that earlier processes relay.
    relayed: Vec<Bound>,
    challenges: Arc<AcmeChallenges>,
    predecessor: Option<Predecessor>,
}

impl Sockets {
    /// Binds each listener, or adopts its socket. Fails where another gateway has the control socket.
    pub(super) fn bind(
        inputs: &Inputs,
        mut predecessor: Option<Predecessor>,
    ) -> Result<Sockets, StartError> {
        let settings = &inputs.settings;
        let accept_queue = settings.server.limits.accept_queue;
        report_accept_queue(accept_queue);
        let challenges = Arc::new(AcmeChallenges::default());
        let bound = settings
            .listeners
            .iter()
            .map(|listener| {
                let sockets = predecessor
                    .as_mut()
                    .map(|predecessor| &mut predecessor.sockets);
                let adopted = sockets.and_then(|sockets| sockets.take_listener(&listener.address));
                Bound::open(listener, accept_queue, &challenges, adopted)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if predecessor.is_none() {
            let control = database::control_socket(&settings.store);
            admin::control::Socket::check(&control).map_err(admin::AdminError::from)?;
        }
        Ok(Sockets {
            bound,
            relayed: Vec::new(),
            challenges,
            predecessor,
        })
    }

    /// Performs every step of a take-over that can fail, then takes the store and the relayed requests. `None` without a predecessor.
    pub(super) fn take_over(
        &mut self,
        inputs: &Inputs,
    ) -> Result<Option<database::Predecessor>, StartError> {
        let Some(predecessor) = &mut self.predecessor else {
            return Ok(None);
        };
        let opener = Opener {
            name: "successor",
            clock: &inputs.clock,
            entropy: &inputs.entropy,
        };
        predecessor.prepare(&inputs.settings, &opener)?;
        let store = predecessor.take_store()?;
        let accept_queue = inputs.settings.server.limits.accept_queue;
        let sockets = predecessor.relays().map_err(StartError::Threads)?;
        let sockets = sockets.into_iter();
        self.relayed = sockets
            .map(|(socket, token)| Bound::relayed(socket, accept_queue, token))
            .collect::<Result<_, _>>()
            .map_err(StartError::Threads)?;
        Ok(Some(store))
    }

    pub(super) fn bound(&self) -> &[Bound] {
        &self.bound
    }

    pub(super) fn challenges(&self) -> &Arc<AcmeChallenges> {
        &self.challenges
    }

    /// The sockets of the listeners and the sockets of relayed requests, for the workers.
    pub(super) fn take(&mut self) -> (Vec<Bound>, Vec<Bound>) {
        let relayed = std::mem::take(&mut self.relayed);
        (std::mem::take(&mut self.bound), relayed)
    }

    /// The admin sockets of the predecessor.
    pub(super) fn adopted_admin(&self) -> Result<Option<AdoptedAdmin>, StartError> {
        let predecessor = self.predecessor.as_ref();
        Ok(predecessor.map(Predecessor::admin_sockets).transpose()?)
    }

    /// Reports to the predecessor that this process serves. Returns the processes that still have requests.
    pub(super) fn report_serving(self) -> Result<Vec<Earlier>, StartError> {
        let earlier = self.predecessor.map(Predecessor::serving).transpose()?;
        Ok(earlier.unwrap_or_default())
    }
}
