//! Warnings about valid settings that carry a risk.

use tollgate_filter::settings::Warning;

use super::Settings;

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
                              (`forwarded_field = \"x-forwarded-for\"`, `\"forwarded\"`, or `\"none\"` if it writes none)",
                });
            }
        }
        found.extend_from_slice(&self.section_warnings);
        found
    }
}
