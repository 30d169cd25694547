//! The module `signin`: rules for one-time codes, and the outbox with the channels that deliver them.

use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_clock::{Clock, Entropy};
use tollgate_counters::{Metric, metrics};
use tollgate_identity::{Signin, SigninRules};
use tollgate_module::{Build, BuildError, Module};
use tollgate_outbox::mail::{Mail, MailSettings};
use tollgate_outbox::sms::{Sms, SmsSettings};
use tollgate_outbox::{Outbox, Sender, Senders};
use tollgate_purchase::Credits;
use tollgate_store::Store;
use zeroize::Zeroizing;

use crate::config::Settings;

metrics! {
    MESSAGES = "tollgate_messages_total", Counter, ["event"],
        "Attempts to deliver messages with codes: sent, failed (repeated), rejected by the receiver, and messages that expired before they were sent.";
}

/// Sign-in with one-time codes.
pub(crate) struct SigninModule;

impl Module for SigninModule {
    fn name(&self) -> &'static str {
        "signin"
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: Arc<Settings> = build.get()?;
        let store: Arc<dyn Store> = build.get()?;
        let clock: Clock = build.get()?;
        let signin = Signin::new(store.clone(), rules(&settings, &build.get()?));
        let outbox = outbox(&settings, &signin, &*store, &clock, &build.get()?)?;
        let deliveries = outbox.counters();
        build.metrics(Box::new(move |samples| {
            samples.numbers(MESSAGES, deliveries.values());
        }));
        build.background(async move { outbox.run().await });
        let swept = signin.clone();
        build.sweep(move || swept.sweep(clock.now()));
        build.provide(signin);
        Ok(())
    }
}

/// The rules for codes and accounts.
fn rules(settings: &Settings, credits: &Credits) -> SigninRules {
    SigninRules {
        length: settings.signin.length,
        country_daily_max: settings.signin.country_daily_max,
        network_hourly_max: settings.signin.network_hourly_max,
        grant: credits.signup_grant,
        ..SigninRules::default()
    }
}

/// The message queue with the configured channels.
fn outbox(
    settings: &Settings,
    signin: &Signin,
    store: &dyn Store,
    clock: &Clock,
    entropy: &Entropy,
) -> Result<Outbox, BuildError> {
    let host = host(settings.service.base_url.as_str());
    let mail = settings.signin.mail.as_ref().map(|mail| {
        Mail::new(MailSettings {
            host: mail.host.clone(),
            port: mail.port,
            security: mail.security,
            login: mail.login.as_ref().map(|(user, password)| {
                (
                    user.clone(),
                    Zeroizing::new(password.expose_secret().to_owned()),
                )
            }),
            from: mail.from.clone(),
            root_pem: mail.root_pem.clone(),
            own_host: host.to_owned(),
        })
    });
    let mail = mail.transpose().map_err(delivery_error)?;
    let sms = settings.signin.sms.as_ref().map(|sms| {
        let settings = SmsSettings {
            url: sms.url.clone(),
            secret: Zeroizing::new(sms.secret.expose_secret().to_owned()),
        };
        Sms::new(settings, clock.clone(), entropy.clone())
    });
    let sms = sms.transpose().map_err(delivery_error)?;
    Ok(Outbox::new(
        store,
        signin.clone(),
        Senders {
            mail: mail.map(|mail| Arc::new(mail) as Arc<dyn Sender>),
            sms: sms.map(|sms| Arc::new(sms) as Arc<dyn Sender>),
        },
        (&settings.brand.name, host),
        clock.clone(),
    ))
}

fn delivery_error(error: impl std::error::Error + Send + Sync + 'static) -> BuildError {
    BuildError::caused_by("cannot set up message delivery", error)
}

/// The host in an address.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_url_excludes_port_and_path() {
        for (url, wanted) in [
            ("https://api.svc.example/base", "api.svc.example"),
            ("http://localhost:8080", "localhost"),
            ("http://[::1]:8080", "[::1]"),
        ] {
            assert_eq!(host(url), wanted);
        }
    }
}
