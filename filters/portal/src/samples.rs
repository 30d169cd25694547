//! Code examples of a chat request: shell, Python, JavaScript.
//!
//! Every example reads the key from the environment: no example shows a key in a file.

use serde::Serialize;
use tollgate_pages::parts::Sample;

/// Values of an installation that every example contains.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// `https://api.example.com`
    base_url: String,
    /// `SVC_API_KEY`
    variable: String,
}

impl Address {
    /// Values for a service of this name.
    pub(crate) fn new(service: &str, base_url: &str) -> Address {
        let word = service
            .to_ascii_uppercase()
            .replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        Address {
            base_url: base_url.trim_end_matches('/').to_owned(),
            variable: format!("{word}_API_KEY"),
        }
    }

    /// Base URL for OpenAI clients: the service URL with the version.
    pub(crate) fn api(&self) -> String {
        format!("{}/v1", self.base_url)
    }

    /// The service URL, without the version.
    pub(crate) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// The environment variable that examples read the key from.
    pub(crate) fn variable(&self) -> &str {
        &self.variable
    }
}

/// A chat request; members in the order of the examples.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ChatExample<'a> {
    pub(crate) model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<serde_json::Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<bool>,
    pub(crate) messages: Vec<ExampleMessage<'a>>,
}

/// One message of an example.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ExampleMessage<'a> {
    pub(crate) role: &'a str,
    pub(crate) content: &'a str,
}

impl<'a> ChatExample<'a> {
    /// A minimal request.
    pub(crate) fn hello(model: &'a str) -> ChatExample<'a> {
        ChatExample {
            model,
            messages: vec![ExampleMessage {
                role: "user",
                content: "Hello",
            }],
            ..ChatExample::default()
        }
    }

    /// The request in each language.
    pub(crate) fn samples(&self, address: &Address) -> Vec<Sample<'static>> {
        [
            ("curl", self.curl(address)),
            ("Python", self.python(address)),
            ("JavaScript", self.javascript(address)),
        ]
        .map(|(name, text)| Sample { name, text })
        .to_vec()
    }

    /// The request as a curl command.
    pub(crate) fn curl(&self, address: &Address) -> String {
        let Address { variable, .. } = address;
        let unbuffered = if self.stream == Some(true) { " -N" } else { "" };
        // A quote inside single quotes: close, escaped quote, reopen.
        let body = self.json("  ").replace('\'', r"'\''");
        format!(
            "curl{unbuffered} \\\n  {}/chat/completions \\\n  -H \"Authorization: Bearer ${variable}\" \\\n  \
             -H \"Content-Type: application/json\" \\\n  -d '{body}'",
            address.api()
        )
    }

    fn python(&self, address: &Address) -> String {
        let mut members = vec![format!("model={}", literal(self.model))];
        if let Some(temperature) = &self.temperature {
            members.push(format!("temperature={temperature}"));
        }
        if let Some(tokens) = self.max_tokens {
            members.push(format!("max_tokens={tokens}"));
        }
        let streams = self.stream == Some(true);
        if streams {
            members.push("stream=True".into());
        }
        if let Some(cache) = self.cache {
            let word = if cache { "True" } else { "False" };
            members.push(format!("extra_body={{\"cache\": {word}}}"));
        }
        let messages: String = self
            .messages
            .iter()
            .map(|message| {
                let ExampleMessage { role, content } = message;
                format!(
                    "\n        {{\"role\": {}, \"content\": {}}},",
                    literal(role),
                    literal(content)
                )
            })
            .collect();
        members.push(format!("messages=[{messages}\n    ]"));
        let members = members.join(",\n    ");
        let shown = if streams {
            "for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or \"\", end=\"\")"
        } else {
            "print(answer.choices[0].message.content)"
        };
        format!(
            "import os\nfrom openai import OpenAI\n\nclient = OpenAI(\n    base_url=\"{}\",\n    api_key=os.environ[\"{}\"],\n)\n\
             answer = client.chat.completions.create(\n    {members},\n)\n{shown}",
            address.api(),
            address.variable
        )
    }

    fn javascript(&self, address: &Address) -> String {
        let shown = if self.stream == Some(true) {
            "for await (const chunk of answer) {\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? \"\");\n}"
        } else {
            "console.log(answer.choices[0].message.content);"
        };
        format!(
            "import OpenAI from \"openai\";\n\nconst client = new OpenAI({{\n  baseURL: \"{}\",\n  apiKey: process.env.{},\n}});\n\
             const answer = await client.chat.completions.create({});\n{shown}",
            address.api(),
            address.variable,
            self.json("")
        )
    }

    /// JSON over several lines, one message per line; lines after the first begin with `margin`.
    fn json(&self, margin: &str) -> String {
        let value = serde_json::to_value(self).expect("strings and numbers serialise");
        let mut lines = vec![format!("\"model\": {}", literal(self.model))];
        for name in ["temperature", "max_tokens", "stream", "cache"] {
            if let Some(value) = value.get(name) {
                lines.push(format!("\"{name}\": {value}"));
            }
        }
        let messages = self
            .messages
            .iter()
            .map(|ExampleMessage { role, content }| {
                let (role, content) = (literal(role), literal(content));
                format!("{margin}    {{\"role\": {role}, \"content\": {content}}}")
            });
        let messages: Vec<String> = messages.collect();
        lines.push(format!(
            "\"messages\": [\n{}\n{margin}  ]",
            messages.join(",\n")
        ));
        format!(
            "{{\n{margin}  {}\n{margin}}}",
            lines.join(&format!(",\n{margin}  "))
        )
    }
}

/// A string literal that is valid in Python and JavaScript.
fn literal(text: &str) -> String {
    serde_json::to_string(text).expect("a string serialises")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_the_key_from_the_environment_in_every_language() {
        let address = Address::new("my-svc", "https://api.example.com/");
        for sample in ChatExample::hello("small").samples(&address) {
            assert!(
                sample.text.contains("https://api.example.com/v1"),
                "{}",
                sample.text
            );
            assert!(sample.text.contains("MY_SVC_API_KEY"), "{}", sample.text);
            assert!(sample.text.contains("\"small\""), "{}", sample.text);
        }
    }

    #[test]
    fn user_input_stays_within_its_quotes() {
        let text = "it's \"5 o'clock\"\n$(rm)";
        let mut example = ChatExample::hello("small");
        example.messages[0].content = text;
        let curl = example.curl(&Address::new("svc", "http://127.0.0.1"));
        let body = curl.split_once("-d '").expect("a body").1;
        let body = body
            .strip_suffix('\'')
            .expect("its end")
            .replace(r"'\''", "'");
        let read: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(read["messages"][0]["content"], text);
    }

    #[test]
    fn request_settings_appear_in_every_language() {
        let example = ChatExample {
            temperature: serde_json::Number::from_f64(0.7),
            max_tokens: Some(256),
            stream: Some(true),
            cache: Some(false),
            ..ChatExample::hello("small")
        };
        let [curl, python, javascript] = &example.samples(&Address::new("svc", "http://a"))[..]
        else {
            panic!("three languages");
        };
        assert!(curl.text.starts_with("curl -N"));
        for piece in [
            "temperature=0.7",
            "max_tokens=256",
            "stream=True",
            "extra_body={\"cache\": False}",
        ] {
            assert!(python.text.contains(piece), "{piece} in {}", python.text);
        }
        for piece in [
            "\"temperature\": 0.7",
            "\"max_tokens\": 256",
            "\"stream\": true",
            "\"cache\": false",
        ] {
            assert!(
                javascript.text.contains(piece),
                "{piece} in {}",
                javascript.text
            );
        }
    }
}
