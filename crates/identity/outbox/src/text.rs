//! Texts of the messages. The code comes first, visible in a notification on a locked screen. No message contains a sign-in link.

use tollgate_clock::Timestamp;
use tollgate_identity::signin::MessageContent;
use tollgate_store::CodePurpose;
use zeroize::Zeroizing;

/// The subject of a mail.
pub(crate) fn subject(content: &MessageContent, service: &str) -> String {
    match content {
        MessageContent::Code { code, .. } => format!("{} is your code for {service}", **code),
        MessageContent::KeyRevoked { .. } => {
            format!("Security notice: an API key for {service} was revoked")
        }
    }
}

/// The text of a mail.
pub(crate) fn mail(
    code: &str,
    purpose: CodePurpose,
    service: &str,
    host: &str,
) -> Zeroizing<String> {
    let what = match purpose {
        CodePurpose::SignUp => "Type it to create your account, or to sign in to the one you have.",
        CodePurpose::Confirm => "Type it to confirm that it is you.",
        _ => "Type it to sign in.",
    };
    Zeroizing::new(format!(
        "{code}\n\n\
         This is your code for {service} at {host}.\n{what}\n\
         It works for 10 minutes, in the browser that requested it.\n\n\
         Do not share it: {service} never asks for it.\n\
         If you did not request a code, ignore this message:\n\
         without the code no one can sign in.\n"
    ))
}

/// The text of a text message. The last line binds the code to the origin in browsers (WICG, origin-bound one-time codes).
pub(crate) fn sms(code: &str, service: &str, host: &str) -> Zeroizing<String> {
    Zeroizing::new(format!(
        "{code} is your code for {service} at {host}. Do not share it.\n\n@{host} #{code}"
    ))
}

/// The text of a mail about a key revoked by a holder of the key; `key` is the label and the displayable part.
pub(crate) fn key_revoked(
    (label, hint): (Option<&str>, Option<&str>),
    at: Timestamp,
    service: &str,
    host: &str,
) -> String {
    let label = label.unwrap_or("no name");
    let hint = hint.unwrap_or("unknown");
    let at = at.rfc3339();
    format!(
        "An API key of your account for {service} at {host} was revoked.\n\n\
         Name: {label}\n\
         Key: {hint}\n\
         Revoked: {at}\n\n\
         Someone who has the key asked for this without signing in. That is the\n\
         way for people who find a leaked key, so assume that it was visible to\n\
         others. Your other keys still work.\n\n\
         What to do:\n\
         - Programs that used this key are refused now. Sign in, and create\n\
         \x20 another key for them on the page \"API keys\".\n\
         - Remove the key from where it was visible: a repository, a log, a\n\
         \x20 public page.\n\
         - Look on the page \"Usage\" for requests that are not yours.\n\n\
         If you have revoked it yourself, ignore this message.\n\
         {service} never asks for a key.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_names_the_key_and_has_no_link() {
        let key = (Some("CI of the shop"), Some("sk-svc-7Hq2...o8FL"));
        let at = Timestamp::from_secs(1_800_000_300);
        let text = key_revoked(key, at, "Example", "api.svc.example");
        for part in [
            "CI of the shop",
            "sk-svc-7Hq2...o8FL",
            "2027-01-15T08:05:00Z",
            "api.svc.example",
            "\n  another key",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("://"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 76), "{text}");
    }

    #[test]
    fn the_code_comes_first_and_no_message_has_a_link() {
        for purpose in [
            CodePurpose::SignIn,
            CodePurpose::SignUp,
            CodePurpose::Confirm,
        ] {
            let text = mail("12345678", purpose, "Example", "api.svc.example");
            assert!(text.starts_with("12345678\n"), "{}", *text);
            assert!(
                text.contains("api.svc.example") && !text.contains("://"),
                "{}",
                *text
            );
            assert!(text.lines().all(|line| line.len() <= 76), "{}", *text);
        }
        let text = sms("12345678", "Example", "api.svc.example");
        assert!(text.starts_with("12345678 "));
        assert_eq!(text.lines().last(), Some("@api.svc.example #12345678"));
    }
}
