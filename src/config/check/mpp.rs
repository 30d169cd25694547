//! `[payments.mpp]`.

use secrecy::{ExposeSecret, SecretString};
use tollgate_filter::settings::{At, Problems};
use tollgate_module::Named;

use super::{CheckContext, word};
use crate::config::mpp::{Mpp, RawMpp};

const SECTION: &str = "payments.mpp";

/// A shorter secret could be found by brute force.
const SECRET_BYTES_MIN: usize = 32;

pub(super) fn mpp(
    raw: &RawMpp,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Mpp> {
    const FIELDS: &[(&str, bool)] = &[("authorization", false), ("payment-authorization", true)];
    let key = |name: &str| format!("{SECTION}.{name}");
    let current = secret(
        ("secret_env", raw.secret_env.as_ref()),
        ("secret_file", raw.secret_file.as_ref()),
        context,
        problems,
    );
    let previous = secret(
        ("previous_secret_env", raw.previous_secret_env.as_ref()),
        ("previous_secret_file", raw.previous_secret_file.as_ref()),
        context,
        problems,
    );
    let own_field = word(
        problems,
        key("credential_header"),
        raw.credential_header.as_ref(),
        FIELDS,
    );
    let is_named = raw.secret_env.is_some() || raw.secret_file.is_some();
    let had_one = raw.previous_secret_env.is_some() || raw.previous_secret_file.is_some();
    if had_one && !is_named {
        let message = "is missing with the previous secret; name the variable that contains the current secret";
        problems.note_missing(key("secret_env"), message);
    }
    Some(Mpp {
        secret: current?,
        previous,
        digest: raw.digest.as_ref().is_some_and(|at| at.value),
        own_field: own_field.unwrap_or_default(),
    })
}

/// A secret that is long enough.
fn secret(
    variable: (&str, Option<&At<String>>),
    file: (&str, Option<&At<String>>),
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<SecretString> {
    let named = Named {
        section: SECTION,
        variable,
        file,
    };
    let secret = named.secret(context, problems)?;
    if secret.expose_secret().len() >= SECRET_BYTES_MIN {
        return Some(secret);
    }
    for (name, at) in [variable, file] {
        if let Some(at) = at {
            let message = format_args!(
                "names `{}`, which contains fewer than {SECRET_BYTES_MIN} characters; use a longer random secret",
                at.value
            );
            problems.note(format!("{SECTION}.{name}"), at, message);
        }
    }
    None
}
