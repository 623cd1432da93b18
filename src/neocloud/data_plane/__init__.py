# pyright: standard
"""The kit of both gateways: process, settings, calls of the control plane, cached answers, HTTP.

The API server uses the HTTP part and the certificate files, too.
"""
