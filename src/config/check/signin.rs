//! `[signin]`.

use std::net::IpAddr;

use tollgate_filter::settings::{At, BaseUrl, Problems};
use tollgate_identity::signin::CodeLength;
use tollgate_module::Named;
use tollgate_outbox::mail::{TransportSecurity, is_sender};

use super::{CheckContext, number, required, word};
use crate::config::raw::{RawMail, RawSignin, RawSms};
use crate::config::settings::{Signin, SigninMail, SigninSms};

const GUARDS: &[(&str, TransportSecurity)] = &[
    ("implicit", TransportSecurity::Implicit),
    ("starttls", TransportSecurity::StartTls),
    ("none", TransportSecurity::None),
];

pub(super) fn signin(
    raw: &RawSignin,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Signin {
    let length = match raw.code_digits.as_ref().map(|at| (at, at.value)) {
        None | Some((_, 8)) => CodeLength::Eight,
        Some((_, 6)) => CodeLength::Six,
        Some((at, other)) => {
            problems.note(
                "signin.code_digits",
                at,
                format_args!("is {other}; use 6 or 8"),
            );
            CodeLength::Eight
        }
    };
    let mut most = |name: &str, at: Option<&At<u64>>, default| {
        let key = format!("signin.{name}");
        let number = number(problems, key, at, default, 1..=1_000_000);
        i64::try_from(number).unwrap_or(i64::MAX)
    };
    Signin {
        sign_up: raw.sign_up.as_ref().is_none_or(|at| at.value),
        length,
        network_hourly_max: most("network_hourly_max", raw.network_hourly_max.as_ref(), 20),
        country_daily_max: most("country_daily_max", raw.country_daily_max.as_ref(), 500),
        mail: mail(&raw.mail, context, problems),
        sms: sms(&raw.sms, context, problems),
    }
}

fn mail(raw: &RawMail, context: &CheckContext<'_>, problems: &mut Problems) -> Option<SigninMail> {
    const SECTION: &str = "signin.mail";
    let key = |name: &str| format!("{SECTION}.{name}");
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
    let from = required(
        problems,
        key("from"),
        raw.from.as_ref(),
        "`from = \"Name <name@example.com>\"`",
    );
    if let Some(at) = from.filter(|at| !is_sender(at)) {
        let message = format_args!(
            "is `{}`, which is not a sender; write `name@example.com` or `Name <name@example.com>`",
            at.value
        );
        problems.note(key("from"), at, message);
    }
    let server = server(url, problems);
    let asked = word(problems, key("tls"), raw.tls.as_ref(), GUARDS);
    let named = Named {
        section: SECTION,
        variable: ("password_env", raw.password_env.as_ref()),
        file: ("password_file", raw.password_file.as_ref()),
    };
    let password = named.secret(context, problems);
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
        let file = context.path(at);
        std::fs::read(&file)
            .map_err(|error| {
                let message =
                    format_args!("names `{}`, which cannot be read ({error})", file.display());
                problems.note(key("ca_file"), at, message);
            })
            .ok()
    });
    let server = server?;
    let security = asked.unwrap_or(server.security);
    if security == TransportSecurity::None && !is_loopback(&server.host) {
        let at = raw.tls.as_ref().unwrap_or(url);
        let message = "is `none`, and the mail server is not this machine: codes could be intercepted; use `starttls` or `implicit`";
        problems.note(key("tls"), at, message);
    }
    Some(SigninMail {
        host: server.host,
        port: server.port,
        security,
        login,
        from: from?.value.clone(),
        root_pem,
    })
}

struct Server {
    host: String,
    port: u16,
    security: TransportSecurity,
}

/// `smtps://` and `smtp://` are parsed as URLs.
fn server(at: &At<String>, problems: &mut Problems) -> Option<Server> {
    const KEY: &str = "signin.mail.smtp_url";
    let (implicit, rest) = match at.value.split_once("://") {
        Some(("smtps", rest)) => (true, rest),
        Some(("smtp", rest)) => (false, rest),
        _ => {
            let message = "does not start with `smtps://` or `smtp://`; write it like `smtps://mail.example.com`";
            problems.note(KEY, at, message);
            return None;
        }
    };
    let read: Result<BaseUrl, _> = format!("http://{rest}").parse();
    let Ok(url) = read else {
        // Not repeated: the text before an `@` may be a password.
        let message = "is not the URL of a mail server; write it like `smtps://mail.example.com:465`, user and password have their own settings";
        problems.note(KEY, at, message);
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

fn sms(raw: &RawSms, context: &CheckContext<'_>, problems: &mut Problems) -> Option<SigninSms> {
    const SECTION: &str = "signin.sms";
    let named = Named {
        section: SECTION,
        variable: ("secret_env", raw.secret_env.as_ref()),
        file: ("secret_file", raw.secret_file.as_ref()),
    };
    let secret = named.secret(context, problems);
    let Some(at) = &raw.webhook_url else {
        if let Some(at) = raw.secret_env.as_ref().or(raw.secret_file.as_ref()) {
            let key = match raw.secret_env {
                Some(_) => "signin.sms.secret_env",
                None => "signin.sms.secret_file",
            };
            let message = "is set without `webhook_url`; name the webhook, or leave both out";
            problems.note(key, at, message);
        }
        return None;
    };
    if raw.secret_env.is_none() && raw.secret_file.is_none() {
        problems.note_missing(
            "signin.sms.secret_env",
            "is missing; name the variable that contains the key for signing requests to the webhook",
        );
    }
    let url: Option<BaseUrl> = problems.parse("signin.sms.webhook_url", at);
    let url = url?;
    if !url.tls && !is_loopback(&url.host) {
        let message =
            "does not start with `https://`, and is not this machine: codes could be intercepted";
        problems.note("signin.sms.webhook_url", at, message);
    }
    Some(SigninSms {
        url: url.to_string(),
        secret: secret?,
    })
}
