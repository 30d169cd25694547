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
        let service = &ucp["services"]["dev.ucp.shopping"][0];
        assert_eq!(
            service["endpoint"],
            "https://api.example.com/ucp/2026-04-08"
        );
        assert_eq!(ucp["payment_handlers"], serde_json::json!({}));
        assert_keeps_to(
            IDENTITY,
            &ucp["capabilities"]["dev.ucp.common.identity_linking"][0],
        );
    }
    rig.finish().await;
}
