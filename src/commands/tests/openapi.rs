//! `tollgate openapi`.

use super::*;

#[test]
fn the_document_of_the_shipped_settings_is_printed() {
    let file = tollgate_testing::package_folder().join("conf/tollgate.toml");
    let args = Args::try_parse_from(["tollgate", "openapi"]).expect("a command");
    let environment = Environment::of([(CONFIG, file.to_str().expect("a plain path"))]);
    let mut out = Vec::new();
    let code = run(args, &Gateway::builder, &environment, &mut out);
    assert_eq!(code.map_err(|error| format!("{error:#}")), Ok(0));
    let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert!(document["paths"]["/v1/chat/completions"]["post"].is_object());
}
