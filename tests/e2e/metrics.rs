//! The metrics endpoint.

use std::collections::BTreeMap;

use bytes::Bytes;
use tollgate::Gateway;
use tollgate::config::Environment;
use tollgate_testing::within;

use crate::rig::{CHAT, PROVIDER_KEY, Rig, chat};

const MODELS: usize = 20;

#[tokio::test]
async fn unlabelled_metrics_exist_from_the_start() {
    let reference = tollgate_testing::package_folder().join("docs/metrics.md");
    let reference = std::fs::read_to_string(reference).expect("the list of metrics");
    let rows: Vec<[&str; 2]> = reference
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `tollgate_")?.split('|');
            let name = cells.next()?.trim().strip_suffix('`')?;
            let kind = cells.next()?.trim();
            cells.next()?.trim().is_empty().then_some([name, kind])
        })
        .collect();
    let rig = Rig::start().await;
    // A task started with the gateway reads the sum of every account.
    let is_read = async {
        loop {
            let page = rig.admin_get("/metrics").await;
            if page.text().contains("\ntollgate_owed_microcredits ") {
                return page;
            }
        }
    };
    let page = within("the sum of all accounts", is_read).await;
    for [name, kind] in &rows {
        let line = format!("# TYPE tollgate_{name} {kind}");
        assert!(
            page.text().lines().any(|have| have == line),
            "no `{line}` in:\n{}",
            page.text()
        );
        let number = match *kind {
            "histogram" => format!("tollgate_{name}_count"),
            _ => format!("tollgate_{name}"),
        };
        rig.metric(&number).await;
    }
    assert!(rows.len() > 10, "the table reads otherwise: {rows:?}");
    rig.finish().await;
}

/// The whole page, more than the gateway's own part: the modules, the store, providers, the process, and the descriptions of metrics.
#[tokio::test]
async fn a_scrape_over_http_of_sixty_routes_and_twenty_models_in_use_is_below_200_kb() {
    let mut settings = "[[model]]\n[[model]]\n".to_owned();
    let mut models = vec!["small".to_owned(), "dear".to_owned()];
    while models.len() < MODELS {
        let id = format!("vendor/model-{}", models.len());
        settings.push_str(&format!(
            "[[model]]\nid = '{id}'\nproviders = [{{ provider = 'stand-in' }}]\nprice = {{ input = '150', output = '600' }}\n"
        ));
        models.push(id);
    }
    let rig = Rig::with(&settings).await;
    let client = rig.client();
    for model in &models {
        for stream in [false, true] {
            let mut request = chat(stream);
            request["model"] = model.as_str().into();
            let answer = client.post(CHAT, &request).await;
            assert_eq!(answer.status, 200, "{model}: {}", answer.text());
            // A stream has an equal charge.
            if !stream {
                let charged = rig.record_charge(&answer.json());
                rig.add_expected_charge(charged);
            }
        }
    }
    let environment = Environment::of([("PROVIDER_KEY", PROVIDER_KEY)]);
    let file = rig.folder.path().join("tollgate.toml");
    let settings = tollgate::config::load(&file, &environment, &Gateway::builder().declarations());
    let settings = settings.expect("they are in force");
    assert!(settings.routes.len() >= 59, "{}", settings.routes.len());
    for route in &settings.routes {
        let segments = route.path.to_string();
        let segments = segments.split('/').map(|segment| match segment {
            named if named.starts_with('{') => "x",
            fixed => fixed,
        });
        let path = segments.collect::<Vec<_>>().join("/");
        let method = route.methods[0].as_str();
        client
            .send(client.request(method, &path, Bytes::new()))
            .await;
    }
    let used = |page: &str, start: &str| {
        let lines = page.lines().filter(|line| line.starts_with(start));
        lines.filter(|line| !line.ends_with(" 0")).count()
    };
    let is_counted = async {
        loop {
            let page = rig.admin_get("/metrics").await;
            let text = page.text();
            let routes = used(text, "tollgate_request_seconds_count{");
            let answers = used(text, "tollgate_model_request_seconds_count{");
            let streams = used(text, "tollgate_model_first_event_seconds_count{");
            if routes >= settings.routes.len() && answers == MODELS && streams == MODELS {
                return page;
            }
        }
    };
    let page = within("every route and model to be counted", is_counted).await;
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for line in page.text().lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        *sizes.entry(name).or_default() += line.len() + 1;
    }
    let bytes = page.body.len();
    assert!(bytes < 200_000, "{bytes} bytes: {sizes:?}");
    rig.finish().await;
}
