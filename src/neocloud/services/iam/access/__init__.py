"""Who calls and what they may do: implements the Authenticator and Authorizer of core."""
