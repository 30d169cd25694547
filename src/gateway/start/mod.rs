//! The start of a gateway in five phases. The type of a phase is made only from the type of the phase before, so that no phase can be
//! skipped or made twice:
//!
//! ```text
//! Sockets::bind    listeners bound, or adopted from the process that started this one
//! Storage::open    store and ledger taken over or opened, recovered, prices recorded
//! Modules::build   certificates, ACME, the background runtime, services and filters
//! Serving::start   chains, workers, background tasks, metrics, reload, health
//! admin::open      upgrade, admin address and control socket; the predecessor hears that this process serves
//! ```

mod admin;
mod background;
mod inputs;
mod metrics;
mod modules;
mod serving;
mod sockets;
mod storage;
mod workers;

use self::inputs::Inputs;
use self::modules::Modules;
use self::serving::Serving;
use self::sockets::Sockets;
use self::storage::Storage;
use super::upgrade::Predecessor;
use super::{Gateway, GatewayBuilder, StartError};
use crate::config::Settings;

pub(super) fn start(
    builder: GatewayBuilder,
    settings: Settings,
    predecessor: Option<Predecessor>,
) -> Result<Gateway, StartError> {
    let declarations = builder.declarations();
    let GatewayBuilder {
        modules,
        clock,
        routes: _,
        entropy,
        resolver,
    } = builder;
    let inputs = Inputs::new(settings, clock, entropy)?;
    // Sockets first: a port in use is the most common mistake, and is found before the store is touched.
    let sockets = Sockets::bind(&inputs, predecessor)?;
    let storage = Storage::open(&inputs, sockets)?;
    let modules = Modules::build(&inputs, storage, modules, declarations)?;
    let serving = Serving::start(&inputs, modules, resolver)?;
    // Last, so that an answer from the admin address proves a gateway that serves.
    admin::open(&inputs, serving)
}
