//! The processor of signed transfers, built from `[payments.x402]`.

use std::sync::Arc;

use tollgate_module::{Build, BuildError, Services, Snapshot, provided};
use tollgate_store::Store;

use super::NAME;
use crate::X402Settings;
use crate::x402::{
    CONFIRM, FixedBearer, HttpFacilitator, HttpNode, Node, Processor, TokenCheck, WAIT, X402Deps,
    payment_reference,
};

/// What a reload changes of the clients in use.
#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) token: Snapshot<FixedBearer>,
    pub(super) node: Option<Arc<HttpNode>>,
}

provided! { NAME => [Credentials, FixedBearer]; }

/// Payments read from the store at once.
const PAGE: usize = 500;

/// The processor of signed transfers; `None` where x402 is not configured.
pub(super) fn processor(build: &mut Build<'_>) -> Result<Option<Processor>, BuildError> {
    let settings: Option<X402Settings> = build.get()?;
    let store: Arc<dyn Store> = build.get()?;
    log_unreconcilable(settings.as_ref(), &*store);
    let Some(known) = settings else {
        return Ok(None);
    };
    let (facilitator, credentials) = clients(&known)?;
    let node = credentials.node.clone().map(|node| node as Arc<dyn Node>);
    build.provide(credentials);
    Ok(Some(Processor::new(X402Deps {
        is_one_of_several: store.has_allotments(),
        store,
        plans: build.get()?,
        idempotency_keys: build.get()?,
        facilitator: Arc::new(facilitator),
        token: TokenCheck::new(node.clone(), &known.terms),
        node,
        terms: known.terms,
        product: build.get()?,
        clock: build.get()?,
        wait: WAIT,
        confirm: CONFIRM,
        runtime: build.get()?,
    })))
}

/// The clients of facilitator and node, and their reloadable parts.
pub(super) fn clients(
    settings: &X402Settings,
) -> Result<(HttpFacilitator, Credentials), BuildError> {
    let token = Snapshot::from(settings.bearer());
    let facilitator = settings.facilitator_with(Arc::new(token.clone()));
    let facilitator = facilitator.map_err(BuildError::of)?;
    let node = settings.node().map_err(BuildError::of)?.map(Arc::new);
    Ok((facilitator, Credentials { token, node }))
}

/// Effect of a reload on signed transfers.
pub(super) struct Reloaded {
    /// The settings fixed at the start, each with the information whether the value differs.
    pub(super) fixed: Vec<(&'static str, bool)>,
    /// Puts the new token and the new address of the node in force, from the next call on.
    pub(super) apply: Box<dyn FnOnce() + Send>,
}

/// Prepares another token at the facilitator and another address of the node, which may contain a key. The terms of payments stay: buyers
/// have signed the terms.
pub(super) fn reload(running: &Services, settings: &Services) -> Result<Reloaded, BuildError> {
    let (old, new): (Option<X402Settings>, Option<X402Settings>) =
        (running.get(NAME)?, settings.get(NAME)?);
    let credentials: Option<Credentials> = running.find();
    let (old, new, credentials) = match (old, new, credentials) {
        (Some(old), Some(new), Some(credentials)) => (old, new, credentials),
        (old, new, _) => {
            return Ok(Reloaded {
                fixed: vec![("payments.x402", old.is_some() != new.is_some())],
                apply: Box::new(|| {}),
            });
        }
    };
    let node = new.rpc_url.as_ref().map(HttpNode::address);
    let node = node.transpose().map_err(BuildError::of)?;
    let (terms, other) = (&old.terms, &new.terms);
    let fixed = vec![
        (
            "payments.x402.facilitator_url",
            old.facilitator_url != new.facilitator_url,
        ),
        (
            "payments.x402.pay_to",
            terms.pay_to.address() != other.pay_to.address(),
        ),
        ("payments.x402.network", terms.network != other.network),
        (
            "payments.x402.asset",
            terms.asset.address() != other.asset.address(),
        ),
        (
            "payments.x402.asset_name",
            terms.asset_name != other.asset_name,
        ),
        (
            "payments.x402.asset_version",
            terms.asset_version != other.asset_version,
        ),
        (
            "payments.x402.max_timeout_secs",
            terms.max_timeout_secs != other.max_timeout_secs,
        ),
        (
            "payments.x402.rpc_url",
            old.rpc_url.is_some() != new.rpc_url.is_some(),
        ),
        ("payments.x402.ca_file", old.roots != new.roots),
    ];
    Ok(Reloaded {
        fixed,
        apply: Box::new(move || {
            credentials.token.replace(new.bearer());
            if let (Some(client), Some(address)) = (credentials.node, node) {
                client.replace_address(address);
            }
        }),
    })
}

/// Logs open payments started under other settings. The current settings cannot reconcile such a payment, and an open payment blocks the
/// account's payments on every route.
fn log_unreconcilable(settings: Option<&X402Settings>, store: &dyn Store) {
    let network = settings.map(|known| &*known.terms.network);
    let mut last = None;
    loop {
        let open = match store.authorizations_open(last.as_ref(), PAGE) {
            Ok(open) => open,
            Err(error) => {
                tracing::error!(%error, "reading open payments failed");
                return;
            }
        };
        for row in &open {
            if network != Some(&*row.key.network) {
                tracing::error!(account = %row.account, payment = payment_reference(row),
                    "cannot reconcile open payment: `[payments.x402]` no longer names its chain; restore the settings, or look the payment up and close it with `tollgate payment close`");
            }
        }
        last = open.into_iter().next_back();
        if last.is_none() {
            return;
        }
    }
}
