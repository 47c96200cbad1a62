//! Tokens: which are good, and the exchange of a service account's signed assertion for one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde_json::Value;

use crate::error::ApiError;

/// What an assertion must be signed with and say.
#[derive(Debug, Default)]
pub struct Tokens {
    serial: u64,
    good: Vec<String>,
    /// The service account's public key: PKCS#1, DER.
    key: Option<Vec<u8>>,
}

impl Tokens {
    pub fn issue(&mut self) -> String {
        self.serial += 1;
        let token = format!("token-{}", self.serial);
        self.good.push(token.clone());
        token
    }

    pub fn revoke_all(&mut self) {
        self.good.clear();
    }

    pub fn trust(&mut self, key: Vec<u8>) {
        self.key = Some(key);
    }

    pub fn accept(&self, header: Option<&str>) -> Result<(), ApiError> {
        let given = header.and_then(|header| header.strip_prefix("Bearer "));
        if given.is_some_and(|given| self.good.iter().any(|good| good == given)) {
            return Ok(());
        }
        let message =
            "Request had invalid authentication credentials. Expected OAuth 2 access token.";
        Err(ApiError::new(401, "authError", message))
    }

    /// A token for an assertion in a form body.
    pub fn exchange(&mut self, form: &str) -> Result<String, ApiError> {
        let refused = |why: &str| ApiError::new(400, "invalid_grant", why);
        let field = |name: &str| {
            form.split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let grant = field("grant_type").unwrap_or_default();
        if !grant.ends_with("jwt-bearer") {
            return Err(refused("grant_type is not jwt-bearer"));
        }
        let assertion = field("assertion").ok_or_else(|| refused("no assertion"))?;
        let (signed, signature) = assertion
            .rsplit_once('.')
            .ok_or_else(|| refused("not a JWT"))?;
        let (head, claims) = signed.split_once('.').ok_or_else(|| refused("not a JWT"))?;
        let decode = |text: &str| {
            URL_SAFE_NO_PAD
                .decode(text)
                .map_err(|_| refused("not base64url"))
        };
        let parse = |text: &str| -> Result<Value, ApiError> {
            serde_json::from_slice(&decode(text)?).map_err(|_| refused("not JSON"))
        };
        if parse(head)?["alg"] != "RS256" {
            return Err(refused("alg is not RS256"));
        }
        let claims = parse(claims)?;
        for name in ["iss", "scope", "aud"] {
            if claims[name].as_str().is_none_or(str::is_empty) {
                return Err(refused("a claim is missing"));
            }
        }
        let (Some(issued), Some(expires)) = (claims["iat"].as_u64(), claims["exp"].as_u64()) else {
            return Err(refused("iat or exp is missing"));
        };
        if expires <= issued || expires - issued > 3600 {
            return Err(refused("exp is more than an hour after iat"));
        }
        let key = self
            .key
            .as_ref()
            .ok_or_else(|| refused("no key is trusted"))?;
        let verified = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key)
            .verify(signed.as_bytes(), &decode(signature)?);
        verified.map_err(|_| refused("Invalid JWT Signature."))?;
        Ok(self.issue())
    }
}
