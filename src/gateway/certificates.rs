//! The certificates of all listeners in force: certificates from files of the settings, and certificates from ACME orders. The module also
//! keeps the authorities of clients' certificates.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::ServerName;
use tollgate_module::Snapshot;

use crate::config::{Certificate, ListenAddress, Settings, TlsSource};
use crate::proxy::{Bound, ListenerTls};

/// Composes the list of each listener, after a reload and after an order. Cheap to clone.
#[derive(Clone)]
pub(super) struct ListenerCertificates {
    shared: Arc<Shared>,
    all: Snapshot<Vec<Certificate>>,
}

struct Shared {
    /// Per listener; `None` without TLS.
    listeners: Vec<Option<Arc<ListenerTls>>>,
    /// Their addresses in the settings.
    addresses: Vec<ListenAddress>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Per listener.
    sources: Vec<Vec<TlsSource>>,
    /// Of the admin address. The admin server presents the certificate by itself.
    admin: Option<Certificate>,
    /// By the id of their order.
    issued: HashMap<[u8; 32], Certificate>,
}

fn serves(certificate: &Certificate, name: &str) -> bool {
    ServerName::try_from(name).is_ok_and(|name| certificate.serves(&name))
}

impl ListenerCertificates {
    /// The certificates that the settings read from files.
    pub(super) fn new(bound: &[Bound], settings: &Settings) -> ListenerCertificates {
        let listeners = bound.iter().map(Bound::tls).collect();
        let addresses = settings.listeners.iter();
        let certificates = ListenerCertificates {
            shared: Arc::new(Shared {
                listeners,
                addresses: addresses.map(|one| one.address.clone()).collect(),
                state: Mutex::default(),
            }),
            all: Snapshot::from(Vec::new()),
        };
        certificates.configure(settings);
        certificates
    }

    /// Every certificate in force, for the expiry metrics.
    pub(super) fn all(&self) -> Snapshot<Vec<Certificate>> {
        self.all.clone()
    }

    /// Uses the certificates and client authorities of new settings from the next handshake on.
    pub(super) fn configure(&self, settings: &Settings) {
        let mut state = self.state();
        let shared = &self.shared;
        let listeners = settings.listeners_at(shared.addresses.iter());
        for (tls, listener) in shared.listeners.iter().zip(&listeners) {
            if let (Some(tls), Some(listener)) = (tls, listener) {
                tls.replace_client_roots(listener.client_roots.as_ref());
            }
        }
        let sources = listeners.into_iter();
        let sources = sources.map(|one| one.map(|one| one.tls.clone()));
        state.sources = sources.map(Option::unwrap_or_default).collect();
        let admin = settings.admin.tls.as_ref();
        state.admin = admin.map(|tls| tls.certificate.clone());
        let before = std::mem::take(&mut state.issued);
        for order in settings.acme_orders() {
            // Names added to an entry leave the earlier names their certificate until a certificate covers every name.
            let names =
                |one: &Certificate| order.names.iter().filter(|name| serves(one, name)).count();
            let similar = || before.values().max_by_key(|one| names(one));
            let found = before.get(&order.id()).or_else(similar);
            if let Some(certificate) = found.filter(|one| names(one) > 0) {
                state.issued.insert(order.id(), certificate.clone());
            }
        }
        self.apply(&state);
    }

    /// Uses the certificate of an order from the next handshake on.
    pub(super) fn install(&self, id: [u8; 32], certificate: Certificate) {
        let mut state = self.state();
        state.issued.insert(id, certificate);
        self.apply(&state);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    fn apply(&self, state: &State) {
        let mut all: Vec<Certificate> = state.admin.iter().cloned().collect();
        for (listener, sources) in self.shared.listeners.iter().zip(&state.sources) {
            let list = sources.iter().filter_map(|source| match source {
                TlsSource::Files(certificate) => Some(certificate.clone()),
                TlsSource::Acme(order) => state.issued.get(&order.id()).cloned(),
            });
            let list: Vec<Certificate> = list.collect();
            all.extend(list.iter().cloned());
            if let Some(listener) = listener {
                listener.replace_certificates(list);
            }
        }
        self.all.replace(all);
    }
}
