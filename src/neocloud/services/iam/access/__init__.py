"""Authentication and authorization: implements the Authenticator and Authorizer of core."""
