//! Listeners on Unix sockets.

use super::*;

fn settings(lines: &str) -> String {
    format!("[[listener]]\n{lines}\n")
}

#[test]
fn the_path_of_a_socket_starts_from_the_folder_of_the_settings() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = settings("address = 'unix:http.sock'");
    let file = folder.path().join("t.toml");
    let found = load_text(&file, &text, &Environment::default(), &modules());
    let found = found.expect("good settings");
    let path = folder.path().join("http.sock");
    let listener = &found.listeners[0];
    assert_eq!(listener.address, ListenAddress::Unix(path));
    assert_eq!(listener.socket_mode, 0o660);
    assert_eq!(found.service.base_url.as_str(), "http://localhost:8080");
    let text = settings("address = 'unix:http.sock'\nsocket_mode = '0666'");
    let found = load_text(&file, &text, &Environment::default(), &modules());
    assert_eq!(found.expect("good").listeners[0].socket_mode, 0o666);
}

#[test]
fn each_mistake_is_named_with_its_remedy() {
    let long = format!("address = 'unix:/tmp/{}'", "a".repeat(103));
    let unix = "address = 'unix:/tmp/a.sock'\n";
    for (lines, words) in [
        ("address = 'unix:'".to_owned(), "and the path of a socket"),
        (
            "address = '/tmp/a.sock'".to_owned(),
            "and the path of a socket",
        ),
        (
            "address = 'unix:/missing/a.sock'".to_owned(),
            "whose folder does not exist",
        ),
        (long, "more than 107 bytes"),
        (format!("{unix}socket_mode = '8'"), "octal digits"),
        (format!("{unix}socket_mode = '1777'"), "octal digits"),
        (format!("{unix}socket_mode = 'rw'"), "octal digits"),
        (
            "address = '127.0.0.1:0'\nsocket_mode = '0660'".to_owned(),
            "no Unix socket",
        ),
        (
            format!("{unix}[[listener]]\n{unix}"),
            "use another port or path",
        ),
    ] {
        let found = problems(&settings(&lines));
        assert!(
            found.iter().any(|one| one.contains(words)),
            "{lines}: {found:?}"
        );
    }
}
