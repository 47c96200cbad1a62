//! One HTTP exchange: bounded in time and size, JSON in and out.

use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::error::CloudError;

/// An aggregated list of instances is the largest answer that is read.
const MAX_ANSWER: usize = 8 << 20;
const AGENT: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

#[derive(Clone)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// A request as it is sent.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub method: Method,
    pub url: &'a str,
    pub bearer: Option<&'a str>,
    pub headers: &'a [(&'static str, &'static str)],
    /// The content type and the body.
    pub body: Option<(&'static str, Vec<u8>)>,
    pub timeout: Duration,
}

impl Http {
    pub fn new() -> Http {
        // A second installation fails and leaves the first one: the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connector = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .build();
        Http {
            client: Client::builder(TokioExecutor::new()).build(connector),
        }
    }

    /// The body of a 2xx answer with its headers.
    pub async fn exchange(&self, outgoing: Outgoing<'_>) -> Result<(HeaderMap, Bytes), CloudError> {
        let mut request = Request::builder()
            .method(outgoing.method)
            .uri(outgoing.url)
            .header(USER_AGENT, AGENT);
        if let Some(token) = outgoing.bearer {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in outgoing.headers {
            request = request.header(*name, *value);
        }
        let body = match outgoing.body {
            Some((format, bytes)) => {
                request = request.header(CONTENT_TYPE, format);
                Bytes::from(bytes)
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(body)).map_err(|error| {
            CloudError::Refused(format!("'{}' is no request: {error}", outgoing.url))
        })?;
        let exchange = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| CloudError::Unavailable(chain(&error)))?;
            let (head, body) = answer.into_parts();
            let bytes = Limited::new(body, MAX_ANSWER).collect().await;
            let bytes = bytes.map_err(|error| {
                CloudError::Unavailable(format!("the answer can't be read: {error}"))
            })?;
            Ok((head, bytes.to_bytes()))
        };
        let answered = tokio::time::timeout(outgoing.timeout, exchange).await;
        let (head, bytes) = answered.map_err(|_| {
            CloudError::Unavailable(format!("no answer within {:?}", outgoing.timeout))
        })??;
        if head.status.is_success() {
            return Ok((head.headers, bytes));
        }
        let after = head
            .headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        Err(CloudError::of_answer(
            head.status.as_u16(),
            &bytes,
            after.map(Duration::from_secs),
        ))
    }
}

/// An error with what caused it: hyper's own text says "client error" and no more.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// JSON of an answer.
pub fn parse(bytes: &[u8]) -> Result<Value, CloudError> {
    serde_json::from_slice(bytes)
        .map_err(|error| CloudError::Unavailable(format!("the answer is not JSON: {error}")))
}
