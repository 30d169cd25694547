//! The module `signin`: the rules of sign-in, and the outbox with the senders that deliver codes, built from `[signin]`.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_counters::{Metric, metrics};
use tollgate_filter::{BrandName, ServiceIdentity};
use tollgate_identity::Signin;
use tollgate_module::{
    Build, BuildError, Module, Reload, SectionType, Services, Snapshot, provided,
};
use tollgate_store::Store;

use crate::config::{RawSignin, SigninSettings};
use crate::delivery::{Outbox, Senders};
use crate::mail::Mail;
use crate::sender::Sender;
use crate::sms::Sms;

const NAME: &str = "signin";

provided! { NAME => [SigninSettings, Senders]; }

metrics! {
    MESSAGES = "tollgate_messages_total", Counter, ["event"],
        "Attempts to deliver messages, codes and notices: sent, failed (repeated), without an answer (unknown, not repeated), rejected by the receiver, and messages that expired before they were sent.";
}

/// Sign-in with one-time codes.
pub struct SigninModule;

impl Module for SigninModule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawSignin>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: SigninSettings = build.get()?;
        let store: Arc<dyn Store> = build.get()?;
        let clock: Clock = build.get()?;
        let (BrandName(brand), service): (_, ServiceIdentity) = (build.get()?, build.get()?);
        let host = host(&service.base_url);
        let signin = Signin::new(store.clone(), settings.rules(build.get()?));
        let senders = senders(&settings, host, clock.clone(), build.get()?)?;
        let senders = Snapshot::from(senders);
        let names = (&*brand, host);
        let outbox = Arc::new(Outbox::new(
            &*store,
            signin.clone(),
            senders.clone(),
            names,
            clock.clone(),
        ));
        build.provide(senders);
        let deliveries = outbox.counters();
        build.metrics(Box::new(move |samples| {
            samples.numbers(MESSAGES, deliveries.values());
        }));
        let attempts = outbox.attempts();
        build.before_stop(move || {
            let attempts = attempts.clone();
            async move { attempts.finish().await }
        });
        build.leader_job(move || {
            let outbox = outbox.clone();
            async move { outbox.run().await }
        });
        let swept = signin.clone();
        build.sweep(move || swept.sweep(clock.now()));
        build.provide(signin);
        Ok(())
    }

    /// Two changes need a restart. The presence of a sender, since pages offer the channel; and the length of codes, since people have
    /// codes of the earlier length. A message under way keeps its sender.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let signin: Signin = running.get(NAME)?;
        let old: SigninSettings = running.get(NAME)?;
        let new: SigninSettings = settings.get(NAME)?;
        let refused = Reload::refused([
            ("code_digits", old.length != new.length),
            ("mail", old.mail.is_some() != new.mail.is_some()),
            ("sms", old.sms.is_some() != new.sms.is_some()),
        ]);
        if let Some(refused) = refused {
            return Ok(refused);
        }
        let rules = new.rules(settings.get(NAME)?);
        let in_force: Snapshot<Senders> = running.get(NAME)?;
        let replaced = match (&old.mail, &old.sms) == (&new.mail, &new.sms) {
            // With their connections.
            true => None,
            false => {
                let service: ServiceIdentity = running.get(NAME)?;
                let (clock, entropy) = (running.get(NAME)?, running.get(NAME)?);
                Some(senders(&new, host(&service.base_url), clock, entropy)?)
            }
        };
        Ok(Reload::ready(move || {
            signin.replace_rules(rules);
            if let Some(senders) = replaced {
                in_force.replace(senders);
            }
        }))
    }
}

/// The configured senders.
fn senders(
    settings: &SigninSettings,
    host: &str,
    clock: Clock,
    entropy: Entropy,
) -> Result<Senders, BuildError> {
    let mail = settings.mail.as_ref().map(|mail| Mail::new(mail, host));
    let mail = mail.transpose().map_err(delivery_error)?;
    let sms = settings.sms.as_ref();
    let sms = sms.map(|sms| Sms::new(sms, clock, entropy));
    let sms = sms.transpose().map_err(delivery_error)?;
    Ok(Senders {
        mail: mail.map(|mail| Arc::new(mail) as Arc<dyn Sender>),
        sms: sms.map(|sms| Arc::new(sms) as Arc<dyn Sender>),
    })
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
    use tollgate_filter::SignupGrant;
    use tollgate_module::{Built, Section, check_text};
    use tollgate_money::Micros;
    use tollgate_store::{RootSecret, sqlite};

    use super::*;

    fn settings(text: &str, grant: i64) -> Services {
        let mut services = Services::default();
        let checked = check_text::<RawSignin>(text, &services).expect("good settings");
        RawSignin::provide(checked, &mut services);
        services.provide(SignupGrant(Micros::new(grant)));
        services
    }

    #[test]
    fn a_reload_changes_the_rules_but_not_the_senders() {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = Clock::system();
        let options = sqlite::Options::new(clock.now(), RootSecret([7; 32]));
        let store = sqlite::open(&folder.path().join("tollgate.db"), options).expect("a store");
        let mut built = Built::default();
        built.services = settings("", 0);
        built.services.provide(store.clone());
        built.services.provide(clock);
        built.services.provide(Entropy::system());
        built.services.provide(BrandName("Tolls".into()));
        built.services.provide(ServiceIdentity {
            name: "svc".to_owned(),
            base_url: "https://svc.example".to_owned(),
            root_url: "https://svc.example".to_owned(),
        });
        built.module(&SigninModule).expect("it has all services");
        let signin: Signin = built.services.find().expect("the rules");
        let reload = |text: &str| {
            let reload = SigninModule.reload(&built.services, &settings(text, 5));
            reload.expect("everything is there").apply()
        };
        let fewer = "network_hourly_max = 3";
        assert_eq!(reload(&format!("sign_up = false\n{fewer}")), Ok(()));
        let rules = signin.rules();
        assert!(!rules.sign_up);
        assert_eq!((rules.network_hourly_max, rules.grant), (3, Micros::new(5)));
        let mail = "[mail]\nsmtp_url = 'smtp://localhost'\nfrom = 'a@svc.example'";
        for (fixed, key) in [(mail, "mail"), ("code_digits = 6", "code_digits")] {
            assert_eq!(reload(fixed), Err(vec![key]), "{fixed}");
        }
        assert!(!signin.rules().sign_up, "nothing has changed");
        store.close();
    }

    #[test]
    fn a_rotated_password_makes_new_senders_and_the_same_password_keeps_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = Clock::system();
        let options = sqlite::Options::new(clock.now(), RootSecret([7; 32]));
        let store = sqlite::open(&folder.path().join("tollgate.db"), options).expect("a store");
        let mail = "[mail]\nsmtp_url = 'smtp://localhost'\nfrom = 'a@svc.example'";
        let settings = |password: &str| {
            let mut services = settings(mail, 0);
            let mut signin: SigninSettings = services.find().expect("the section");
            let mail = signin.mail.as_mut().expect("mail");
            mail.login = Some((String::from("a"), password.into()));
            services.provide(signin);
            services
        };
        let mut built = Built::default();
        built.services = settings("before");
        built.services.provide(store.clone());
        built.services.provide(clock);
        built.services.provide(Entropy::system());
        built.services.provide(BrandName("Tolls".into()));
        built.services.provide(ServiceIdentity {
            name: "svc".to_owned(),
            base_url: "https://svc.example".to_owned(),
            root_url: "https://svc.example".to_owned(),
        });
        built.module(&SigninModule).expect("it has all services");
        let senders: Snapshot<Senders> = built.services.find().expect("the senders");
        let sender = || senders.load().mail.clone().expect("mail");
        let first = sender();
        for (password, is_kept) in [("before", true), ("after", false)] {
            let reload = SigninModule.reload(&built.services, &settings(password));
            assert_eq!(reload.expect("everything is there").apply(), Ok(()));
            assert_eq!(Arc::ptr_eq(&first, &sender()), is_kept, "{password}");
        }
        store.close();
    }

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
