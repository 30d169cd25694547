//! Resource indicators (RFC 8707): a fixed table compared byte for byte.

use tollgate_filter::{Resource, Resources, ServiceIdentity};
use tollgate_identity::oauth::Requested;

/// Identifiers of the service's resources.
///
/// Libraries normalise `https://host` to `https://host/`, so each identifier is also listed with a trailing slash. No further
/// normalisation: `/mcp` is a prefix of `/mcp/android`, and the two are distinct.
#[derive(Clone, Debug)]
pub(crate) struct ResourceNames(Vec<(String, Resource)>);

impl ResourceNames {
    pub(crate) fn new(service: &ServiceIdentity) -> ResourceNames {
        let mut names = Vec::new();
        for resource in Resource::ALL {
            names.push((service.resource_url(resource), resource));
        }
        // Both URLs of the service are further identifiers of its API.
        names.push((service.base_url.clone(), Resource::Api));
        names.push((service.root_url.clone(), Resource::Api));
        let with_slash: Vec<_> = names
            .iter()
            .map(|(name, resource)| (format!("{name}/"), *resource))
            .collect();
        names.extend(with_slash);
        ResourceNames(names)
    }

    /// The resource with this identifier.
    pub(crate) fn find(&self, name: &str) -> Option<Resource> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, resource)| *resource)
    }

    /// The resource selected by the `resource` values. Repetitions count once; two different values are an error, since a token has one
    /// audience (RFC 8707 section 2).
    pub(crate) fn requested<'a>(&self, mut values: impl Iterator<Item = &'a str>) -> Requested {
        let Some(first) = values.next() else {
            return Requested::Omitted;
        };
        if values.any(|other| other != first) {
            return Requested::Unknown;
        }
        match (first, self.find(first)) {
            ("", _) => Requested::Omitted,
            (_, Some(resource)) => Requested::Bits(Resources::only(resource).bits()),
            (_, None) => Requested::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(base_url: &str, root_url: &str) -> ResourceNames {
        ResourceNames::new(&ServiceIdentity {
            name: String::from("svc"),
            base_url: base_url.to_owned(),
            root_url: root_url.to_owned(),
        })
    }

    #[test]
    fn rfc8707_2_names_are_compared_byte_for_byte() {
        let names = names("https://api.svc.example", "https://svc.example");
        for (name, resource) in [
            ("https://api.svc.example/v1", Some(Resource::Api)),
            ("https://api.svc.example/v1/", Some(Resource::Api)),
            ("https://api.svc.example", Some(Resource::Api)),
            ("https://api.svc.example/", Some(Resource::Api)),
            ("https://svc.example", Some(Resource::Api)),
            ("https://svc.example/", Some(Resource::Api)),
            ("https://api.svc.example/mcp", Some(Resource::Mcp)),
            ("https://api.svc.example/mcp/", Some(Resource::Mcp)),
            (
                "https://api.svc.example/mcp/android",
                Some(Resource::McpAndroid),
            ),
            (
                "https://api.svc.example/mcp/android/",
                Some(Resource::McpAndroid),
            ),
            ("https://api.svc.example/mcp/androids", None),
            ("https://api.svc.example/mcp/x", None),
            ("https://api.svc.example/v1//", None),
            ("https://api.svc.example/v2", None),
            ("https://svc.example/v1", None),
            ("https://svc.example/mcp", None),
            ("https://API.svc.example/v1", None),
            ("HTTPS://api.svc.example/v1", None),
            ("http://api.svc.example/v1", None),
            ("https://api.svc.example:443/v1", None),
            ("https://api.svc.example/v1?x", None),
            ("https://api.svc.example/v1#x", None),
            ("https://api.svc.example/V1", None),
            ("https://api.svc.example/%761", None),
            ("https://evil.example/v1", None),
            ("api", None),
        ] {
            assert_eq!(names.find(name), resource, "{name}");
        }
    }

    #[test]
    fn the_same_resource_twice_is_one_and_two_are_too_many() {
        let names = names("https://svc.example", "https://svc.example");
        let api = Requested::Bits(Resources::API.bits());
        let (v1, mcp) = ("https://svc.example/v1", "https://svc.example/mcp");
        for (values, asked) in [
            (vec![], Requested::Omitted),
            (vec![""], Requested::Omitted),
            (vec![v1], api),
            (vec![v1, v1], api),
            (vec![v1, mcp], Requested::Unknown),
            // Two identifiers of one resource are two values.
            (vec![v1, "https://svc.example"], Requested::Unknown),
            (vec![v1, ""], Requested::Unknown),
            (vec!["https://evil.example"], Requested::Unknown),
        ] {
            assert_eq!(
                names.requested(values.clone().into_iter()),
                asked,
                "{values:?}"
            );
        }
    }
}
