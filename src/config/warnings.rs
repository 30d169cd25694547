//! Warnings about valid settings that carry a risk.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tollgate_clock::Timestamp;
use tollgate_filter::settings::Warning;

use super::{AcmeChallenge, AcmeOrder, Certificate, Settings, TlsSource};

impl Settings {
    /// The risks of these settings.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut found = self.route_warnings.clone();
        for (number, listener) in self.listeners.iter().enumerate() {
            let proxies = listener.proxies.as_ref();
            if proxies.is_some_and(|proxies| !proxies.names_field && !proxies.proxy_protocol) {
                found.push(Warning {
                    key: format!("listener.{number}.trusted_proxies"),
                    message: "is set without `forwarded_field` and without `proxy_protocol`, so `X-Forwarded-For` and `Forwarded` are both \
                              trusted, also from a client if the proxy does not set them; name the field that the proxy writes \
                              (`forwarded_field = \"x-forwarded-for\"`, `\"forwarded\"`, or `\"none\"` if it writes none)".into(),
                });
            }
        }
        found.extend_from_slice(&self.section_warnings);
        found.extend(self.foreign_certificates());
        found.extend(self.unreachable_challenge());
        found
    }

    /// A listener without a certificate for the host of the address given to clients.
    fn foreign_certificates(&self) -> Option<Warning> {
        let authority = self.service.base_url.as_str().strip_prefix("https://")?;
        let authority = authority.split('/').next().unwrap_or(authority);
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        };
        let host = host.trim_matches(['[', ']']);
        let name = ServerName::try_from(host).ok()?;
        let is_served = self.certificates().any(|one| one.serves(&name))
            || self.acme_orders().any(|order| order.serves(&name));
        let first = self.certificates().map(Certificate::label);
        let mut first = first.chain(self.acme_orders().map(|order| order.label()));
        let file = first.next().filter(|_| !is_served)?;
        let message = format!(
            "names the host `{host}`, for which no certificate of a listener was issued (the first is `{file}`), so clients refuse to \
             connect; name a certificate for it, unless a proxy in front ends TLS"
        );
        Some(Warning {
            key: String::from("service.base_url"),
            message: message.into(),
        })
    }

    /// A certificate whose challenge is answered by HTTP, where no listener takes it without TLS.
    fn unreachable_challenge(&self) -> Option<Warning> {
        let is_plain = self
            .listeners
            .iter()
            .any(|listener| listener.tls.is_empty());
        let is_http = |order: &&Arc<AcmeOrder>| order.challenge == AcmeChallenge::Http01;
        let order = self.acme_orders().find(is_http).filter(|_| !is_plain)?;
        let message = format!(
            "has no element without `tls`, and the authority sends the challenge `http-01` for `{}` to port 80 without TLS; add one, or use \
             `tls-alpn-01`, unless a proxy in front passes these requests on",
            order.names[0]
        );
        Some(Warning {
            key: String::from("listener"),
            message: message.into(),
        })
    }

    /// The certificates that have expired or soon will.
    pub fn expiring_certificates(&self, now: Timestamp) -> Vec<Warning> {
        let listeners = self.listeners.iter().enumerate();
        let certificates = listeners.flat_map(|(number, listener)| {
            let sources = listener.tls.iter().enumerate();
            sources.filter_map(move |(at, source)| match source {
                TlsSource::Files(one) => {
                    Some((format!("listener.{number}.tls.{at}.certificate"), one))
                }
                TlsSource::Acme(_) => None,
            })
        });
        let admin = self.admin.tls.iter();
        let admin = admin.map(|tls| (String::from("admin.tls.certificate"), &tls.certificate));
        let found = certificates.chain(admin).filter_map(|(key, one)| {
            let message = one.expiry_warning(now)?.into();
            Some(Warning { key, message })
        });
        found.collect()
    }
}
