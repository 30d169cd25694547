//! The shipped settings file: its defaults, and what follows the service.

use tollgate_filter::PartCeilings;

use super::*;

#[test]
fn the_shipped_file_contains_the_built_in_routes() {
    let file = root().join("conf/tollgate.toml");
    let shipped =
        load(&file, &Environment::default(), &modules()).expect("the shipped file is good");
    // What it sells has no default.
    let sold =
        "credits = { usd_per_credit = '1' }\nplan = { features = ['Ten times the requests'] }";
    let built_in = check(sold, &Environment::default()).expect("defaults are good");
    assert_eq!(
        format!("{:#?}", shipped.routes),
        format!("{:#?}", built_in.routes),
        "the file contains the defaults"
    );
    assert_eq!(
        format!("{:?}", shipped.server.limits),
        format!("{:?}", built_in.server.limits)
    );
    assert_eq!(
        format!("{:?}", shipped.sections),
        format!("{:?}", built_in.sections)
    );
    assert_eq!(
        shipped.store.url,
        StoreUrl::Sqlite(root().join("conf/tollgate.db")),
        "paths start from the folder of the file"
    );
    let model = shipped.catalog.default_model().expect("a default model");
    assert_eq!(
        model.part_ceilings,
        PartCeilings::all(model.price.quote(4096, 0)),
        "the shipped file sets it to the price of 4,096 tokens"
    );
}

#[test]
fn names_and_addresses_of_the_shipped_file_follow_the_service() {
    let text = std::fs::read_to_string(root().join("conf/tollgate.toml")).expect("a text");
    let text = text
        .replacen("name = \"svc\"", "name = \"acme\"", 1)
        .replacen(
            "base_url = \"http://localhost:8080\"",
            "base_url = \"https://acme.example\"",
            1,
        )
        .replacen(
            "root_url = \"http://localhost:8080\"",
            "root_url = \"https://acme.example\"",
            1,
        );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, &text).expect("the folder takes files");
    let settings = load(&file, &Environment::default(), &modules()).expect("good settings");
    for line in ["\"svc\"", "http://localhost:8080"] {
        let uncommented = text
            .lines()
            .filter(|text| !text.trim_start().starts_with('#'));
        let left: Vec<&str> = uncommented.filter(|text| text.contains(line)).collect();
        assert_eq!(
            left,
            [] as [&str; 0],
            "the file repeats what follows the service"
        );
    }
    let sections = format!("{:?}", settings.sections);
    assert!(sections.contains("https://acme.example/keys"), "{sections}");
    assert!(!sections.contains("localhost:8080"), "{sections}");
}
