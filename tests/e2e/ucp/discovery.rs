//! The UCP business profile.

use bytes::Bytes;

use super::schemas::{IDENTITY, PROFILE, assert_keeps_to};
use crate::rig::Setup;

#[tokio::test]
async fn the_ucp_profile_names_the_protocols_endpoint() {
    let settings = "[service]\nbase_url = \"https://api.example.com\"";
    let rig = Setup::offering_everything(settings).start().await;
    for (what, client) in rig.both() {
        let mut request = client.request("GET", "/.well-known/ucp", Bytes::new());
        request.headers_mut().remove("authorization");
        let answer = client.send(request).await;
        assert_eq!(answer.status, 200, "{what}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let kept = answer.header("cache-control").expect("how long it is kept");
        let secs = kept
            .strip_prefix("public, max-age=")
            .expect("a public response");
        assert!(secs.parse::<u32>().expect("seconds") >= 60, "{kept}");

        let profile = answer.json();
        assert_keeps_to(PROFILE, &profile);
        let ucp = &profile["ucp"];
        assert_of_version(ucp, "2026-04-08");
        // A platform of the newer version finds the newer profile. The newer profile names no other version.
        let newer = "https://api.example.com/.well-known/ucp/2026-08-25";
        let versions = serde_json::json!({"2026-08-25": newer});
        assert_eq!(ucp["supported_versions"], versions);
        let answer = client.get("/.well-known/ucp/2026-08-25").await;
        assert_eq!(answer.status, 200, "{what}");
        let leaf = answer.json();
        assert_keeps_to(PROFILE, &leaf);
        assert_of_version(&leaf["ucp"], "2026-08-25");
        assert_eq!(leaf["ucp"].get("supported_versions"), None);
        assert_eq!(ucp["payment_handlers"], serde_json::json!({}));
        assert_keeps_to(
            IDENTITY,
            &ucp["capabilities"]["dev.ucp.common.identity_linking"][0],
        );
    }
    rig.finish().await;
}

/// A profile of a version has only capabilities and services of the version.
fn assert_of_version(ucp: &serde_json::Value, version: &str) {
    assert_eq!(ucp["version"], version);
    let service = &ucp["services"]["dev.ucp.shopping"][0];
    let endpoint = format!("https://api.example.com/ucp/{version}");
    assert_eq!(service["endpoint"], *endpoint);
    assert_eq!(service["version"], version);
    let capabilities = ucp["capabilities"].as_object().expect("capabilities");
    for (name, entries) in capabilities {
        assert_eq!(entries[0]["version"], version, "{name}");
    }
}
