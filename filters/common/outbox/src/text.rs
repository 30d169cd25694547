//! Texts of the messages. The code comes first, so that it is visible in a notification on a locked screen; no message contains a sign-in
//! link.

use tollgate_store::CodePurpose;
use zeroize::Zeroizing;

/// The subject of a mail.
pub(crate) fn subject(code: &str, service: &str) -> String {
    format!("{code} is your code for {service}")
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

/// The text of a text message. Its last line binds the code to the origin in browsers (WICG, origin-bound one-time codes).
pub(crate) fn sms(code: &str, service: &str, host: &str) -> Zeroizing<String> {
    Zeroizing::new(format!(
        "{code} is your code for {service} at {host}. Do not share it.\n\n@{host} #{code}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
