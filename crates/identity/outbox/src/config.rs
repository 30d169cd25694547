//! The section `[signin]`: as written, with its check.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::SignupGrant;
use tollgate_filter::settings::{At, BaseUrl, Problems, Switch, Whole, words};
use tollgate_identity::signin::{CodeChannels, CodeLength, SigninRules};
use tollgate_module::{Named, Section, SectionContext, Services};

use crate::mail::{MailSettings, TransportSecurity, is_sender};
use crate::sms::SmsSettings;

/// Sign-in with one-time codes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawSignin {
    /// Whether people may create accounts themselves.
    pub sign_up: Switch<true>,
    /// Digits of a one-time code.
    ///
    /// Default: 8
    /// Range: 6 or 8
    pub code_digits: Option<At<u64>>,
    /// Maximum codes requested from one network (an IPv4 address, or 64 bits of an IPv6 address) in an hour.
    pub network_hourly_max: Whole<20, 1, 1_000_000>,
    /// Maximum text messages to one country in a day.
    pub country_daily_max: Whole<500, 1, 1_000_000>,
    /// Maximum accounts of one network that get `credits.signup_grant` in a day. Those above it are made without.
    pub grants_network_daily_max: Whole<10, 1, 1_000_000>,
    /// Maximum accounts with addresses at one domain that get `credits.signup_grant` in a day. Those above it are made without.
    pub grants_domain_daily_max: Whole<100, 1, 1_000_000>,
    /// Delivery of codes by mail.
    pub mail: RawMail,
    /// Delivery of codes by text message.
    pub sms: RawSms,
}

/// Delivery of codes by mail.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawMail {
    /// The mail server.
    ///
    /// Type: address
    /// Default: none: no codes by mail
    /// Range: `smtps://` (port 465) or `smtp://` (port 587) and a host
    pub smtp_url: Option<At<String>>,
    /// Transport security. The certificate is always verified.
    ///
    /// Type: word
    /// Default: `implicit` for `smtps`; `starttls` for `smtp`, `none` where that is this machine
    /// Range: `implicit`, `starttls`, `none` (to this machine alone)
    pub tls: Option<At<String>>,
    /// The user name at the server.
    pub user: Option<At<String>>,
    /// Contains the password.
    ///
    /// Type: name of a variable
    /// Range: not beside `password_file`
    pub password_env: Option<At<String>>,
    /// Contains the password.
    ///
    /// Type: path
    pub password_file: Option<At<String>>,
    /// The sender.
    ///
    /// Type: address
    /// Default: required with `smtp_url`
    /// Range: an address, or a name and an address in angle brackets
    pub from: Option<At<String>>,
    /// A root to trust besides the system's.
    ///
    /// Type: path
    /// Range: PEM
    pub ca_file: Option<At<String>>,
}

/// Delivery of codes by text message.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawSms {
    /// The webhook that sends text messages.
    ///
    /// Type: URL
    /// Default: none: no codes by text message
    /// Range: `https`; `http` to this machine alone
    pub webhook_url: Option<At<String>>,
    /// Contains the key for signing the requests.
    ///
    /// Type: name of a variable
    /// Default: required with `webhook_url`, or `secret_file`
    pub secret_env: Option<At<String>>,
    /// Contains the key for signing the requests.
    ///
    /// Type: path
    /// Range: not beside `secret_env`
    pub secret_file: Option<At<String>>,
}

/// `[signin]`, validated.
#[derive(Clone, Debug)]
pub struct SigninSettings {
    /// Whether people may create accounts themselves.
    pub sign_up: bool,
    /// Length of one-time codes.
    pub length: CodeLength,
    /// Codes requested from one network in an hour.
    pub network_hourly_max: i64,
    /// Text messages to one country in a day.
    pub country_daily_max: i64,
    /// Credits for signing up to one network in a day.
    pub grants_network_daily_max: i64,
    /// Credits for signing up to the addresses at one domain in a day.
    pub grants_domain_daily_max: i64,
    /// The mail server; `None`: no codes by mail.
    pub mail: Option<MailSettings>,
    /// The webhook for text messages; without it no codes are sent by text message.
    pub sms: Option<SmsSettings>,
}

impl SigninSettings {
    /// The rules of sign-in, with the credits of a new account.
    pub(crate) fn rules(&self, SignupGrant(grant): SignupGrant) -> SigninRules {
        SigninRules {
            sign_up: self.sign_up,
            length: self.length,
            country_daily_max: self.country_daily_max,
            network_hourly_max: self.network_hourly_max,
            grant,
            grants_network_daily_max: self.grants_network_daily_max,
            grants_domain_daily_max: self.grants_domain_daily_max,
            ..SigninRules::default()
        }
    }
}

impl Section for RawSignin {
    const NAME: &'static str = "signin";
    type Settings = SigninSettings;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<SigninSettings> {
        let length = match self.code_digits.as_ref().map(|at| (at, at.value)) {
            None | Some((_, 8)) => Some(CodeLength::Eight),
            Some((_, 6)) => Some(CodeLength::Six),
            Some((at, other)) => {
                let message = format_args!("is {other}; use 6 or 8");
                problems.note(context.key("code_digits"), at, message);
                None
            }
        };
        let network = context.key("network_hourly_max");
        let network = self.network_hourly_max.check(network, problems);
        let country = context.key("country_daily_max");
        let country = self.country_daily_max.check(country, problems);
        let of_network = context.key("grants_network_daily_max");
        let of_network = self.grants_network_daily_max.check(of_network, problems);
        let of_domain = context.key("grants_domain_daily_max");
        let of_domain = self.grants_domain_daily_max.check(of_domain, problems);
        let mail = mail(&self.mail, context, problems);
        let sms = sms(&self.sms, context, problems);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Some(SigninSettings {
            sign_up: self.sign_up.is_on(),
            length: length?,
            network_hourly_max: count(network?),
            country_daily_max: count(country?),
            grants_network_daily_max: count(of_network?),
            grants_domain_daily_max: count(of_domain?),
            mail,
            sms,
        })
    }

    fn provide(settings: SigninSettings, services: &mut Services) {
        services.provide(CodeChannels {
            email: settings.mail.is_some(),
            phone: settings.sms.is_some(),
        });
        services.provide(settings);
    }
}

fn mail(
    raw: &RawMail,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<MailSettings> {
    let section = context.key("mail");
    let key = |name: &str| format!("{section}.{name}");
    let Some(url) = &raw.smtp_url else {
        for (name, at) in [
            ("from", raw.from.as_ref()),
            ("user", raw.user.as_ref()),
            ("password_env", raw.password_env.as_ref()),
            ("password_file", raw.password_file.as_ref()),
        ] {
            if let Some(at) = at {
                let message = "is set without `smtp_url`; name the mail server, or leave both out";
                problems.note(key(name), at, message);
            }
        }
        return None;
    };
    let from = raw.from.as_ref();
    match from {
        None => {
            let message = "is missing; write `from = \"Name <name@example.com>\"`";
            problems.note_missing(key("from"), message);
        }
        Some(at) if !is_sender(at) => {
            let message = format_args!(
                "is `{}`, which is not a sender; write `name@example.com` or `Name <name@example.com>`",
                at.value
            );
            problems.note(key("from"), at, message);
        }
        Some(_) => {}
    }
    let server = server(key("smtp_url"), url, problems);
    let tls = raw.tls.as_ref();
    let asked = tls.and_then(|at| security(key("tls"), at, problems));
    let named = Named {
        section: &section,
        variable: ("password_env", raw.password_env.as_ref()),
        file: ("password_file", raw.password_file.as_ref()),
    };
    let password = named.secret(context.inputs(), problems);
    let login = match (&raw.user, password) {
        (Some(user), Some(password)) => Some((user.value.clone(), password)),
        (Some(at), None) if raw.password_env.is_none() && raw.password_file.is_none() => {
            let message = "is set without a password; add `password_env` or `password_file`";
            problems.note(key("user"), at, message);
            None
        }
        _ => None,
    };
    let root_pem = raw.ca_file.as_ref().and_then(|at| {
        let read = context.inputs().file(at);
        let unreadable = |error| {
            let file = context.inputs().path(at);
            let message =
                format_args!("names `{}`, which cannot be read ({error})", file.display());
            problems.note(key("ca_file"), at, message);
        };
        read.map_err(unreadable).ok()
    });
    let server = server?;
    let security = asked.unwrap_or(server.security);
    if security == TransportSecurity::None && !is_loopback(&server.host) {
        let message = "is `none`, and the mail server is not this machine: codes could be intercepted; use `starttls` or `implicit`";
        problems.note(key("tls"), tls.unwrap_or(url), message);
    }
    Some(MailSettings {
        host: server.host,
        port: server.port,
        security,
        login,
        from: from?.value.clone(),
        root_pem,
    })
}

fn security(key: String, at: &At<String>, problems: &mut Problems) -> Option<TransportSecurity> {
    const KNOWN: [&str; 3] = ["implicit", "starttls", "none"];
    match at.value.as_str() {
        "implicit" => Some(TransportSecurity::Implicit),
        "starttls" => Some(TransportSecurity::StartTls),
        "none" => Some(TransportSecurity::None),
        other => {
            problems.note(key, at, format_args!("is `{other}`; use {}", words(&KNOWN)));
            None
        }
    }
}

struct Server {
    host: String,
    port: u16,
    security: TransportSecurity,
}

/// `smtps://` and `smtp://` are parsed as URLs.
fn server(key: String, at: &At<String>, problems: &mut Problems) -> Option<Server> {
    let (implicit, rest) = match at.value.split_once("://") {
        Some(("smtps", rest)) => (true, rest),
        Some(("smtp", rest)) => (false, rest),
        _ => {
            let message = "does not start with `smtps://` or `smtp://`; write it like `smtps://mail.example.com`";
            problems.note(key, at, message);
            return None;
        }
    };
    let read: Result<BaseUrl, _> = format!("http://{rest}").parse();
    let Ok(url) = read else {
        // Not repeated: the text before an `@` may be a password.
        let message = "is not the URL of a mail server; write it like `smtps://mail.example.com:465`, user and password have their own settings";
        problems.note(key, at, message);
        return None;
    };
    let has_port = rest
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    Some(Server {
        security: match (implicit, is_loopback(&url.host)) {
            (true, _) => TransportSecurity::Implicit,
            (false, true) => TransportSecurity::None,
            (false, false) => TransportSecurity::StartTls,
        },
        port: match (has_port, implicit) {
            (true, _) => url.port,
            (false, true) => 465,
            (false, false) => 587,
        },
        host: url.host,
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn sms(raw: &RawSms, context: &SectionContext<'_>, problems: &mut Problems) -> Option<SmsSettings> {
    let section = context.key("sms");
    let key = |name: &str| format!("{section}.{name}");
    let (in_variable, in_file) = (raw.secret_env.as_ref(), raw.secret_file.as_ref());
    let named = Named {
        section: &section,
        variable: ("secret_env", in_variable),
        file: ("secret_file", in_file),
    };
    let secret = named.secret(context.inputs(), problems);
    let secret_key = match in_variable {
        Some(_) => key("secret_env"),
        None => key("secret_file"),
    };
    let Some(at) = &raw.webhook_url else {
        if let Some(at) = in_variable.or(in_file) {
            let message = "is set without `webhook_url`; name the webhook, or leave both out";
            problems.note(secret_key, at, message);
        }
        return None;
    };
    if in_variable.or(in_file).is_none() {
        problems.note_missing(
            key("secret_env"),
            "is missing; name the variable that contains the key for signing requests to the webhook",
        );
    }
    let url: BaseUrl = problems.parse(key("webhook_url"), at)?;
    if !url.tls && !is_loopback(&url.host) {
        let message =
            "does not start with `https://`, and is not this machine: codes could be intercepted";
        problems.note(key("webhook_url"), at, message);
    }
    Some(SmsSettings {
        url: url.to_string(),
        secret: secret?,
    })
}
