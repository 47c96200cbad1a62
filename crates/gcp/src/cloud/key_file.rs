//! A service account's key file: a signed assertion is exchanged for a token.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::Method;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::json;

use super::error::CloudError;
use super::http::{Http, Outgoing};
use super::metadata::issued;
use super::token::Issued;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
/// A key file is 2.3 KB.
const MAX_FILE: u64 = 64 << 10;

#[derive(Deserialize)]
struct KeyFile {
    client_email: String,
    private_key: String,
    #[serde(default)]
    private_key_id: String,
    #[serde(default)]
    token_uri: Option<String>,
}

/// Reads the file each time, so that a rotated key is used at the next renewal.
pub async fn token(http: &Http, file: &Path) -> Result<Issued, CloudError> {
    let named =
        |text: String| CloudError::Unauthenticated(format!("key file {}: {text}", file.display()));
    let size = tokio::fs::metadata(file)
        .await
        .map_err(|error| named(error.to_string()))?;
    if !size.is_file() || size.len() > MAX_FILE {
        return Err(named(format!(
            "not a regular file of at most {MAX_FILE} bytes"
        )));
    }
    let text = tokio::fs::read(file)
        .await
        .map_err(|error| named(error.to_string()))?;
    let key: KeyFile = serde_json::from_slice(&text)
        .map_err(|error| named(format!("not a service account's key: {error}")))?;
    let uri = key
        .token_uri
        .clone()
        .unwrap_or_else(|| TOKEN_URI.to_owned());
    let assertion = assertion(&key, &uri).map_err(named)?;
    let form = format!(
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={assertion}"
    );
    let outgoing = Outgoing {
        method: Method::POST,
        url: &uri,
        bearer: None,
        headers: &[],
        body: Some(("application/x-www-form-urlencoded", form.into_bytes())),
        timeout: Duration::from_secs(15),
    };
    let (_, bytes) = http.exchange(outgoing).await.map_err(|error| match error {
        CloudError::Refused(text) | CloudError::Denied(text) => named(text),
        other => other,
    })?;
    issued(&bytes)
}

fn assertion(key: &KeyFile, audience: &str) -> Result<String, String> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(key.private_key.as_bytes())
        .map_err(|error| format!("private_key: {error}"))?;
    let pair = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der())
        .map_err(|error| format!("private_key: {error}"))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|error| error.to_string())?
        .as_secs();
    let head = json!({ "alg": "RS256", "typ": "JWT", "kid": key.private_key_id });
    let claims = json!({ "iss": key.client_email, "scope": SCOPE, "aud": audience, "iat": now, "exp": now + 3600 });
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let signed = format!(
        "{}.{}",
        encode(head.to_string().as_bytes()),
        encode(claims.to_string().as_bytes())
    );
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        signed.as_bytes(),
        &mut signature,
    )
    .map_err(|error| format!("can't sign: {error}"))?;
    Ok(format!("{signed}.{}", encode(&signature)))
}
