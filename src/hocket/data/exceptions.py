"""Errors of data sets, under Ray's names of them and of their module."""

from hocket.exceptions import SystemError as SystemException
from hocket.exceptions import UserCodeException
from hocket.exceptions import UserCodeException as RayDataUserCodeException

__all__ = ["RayDataUserCodeException", "SystemException", "UserCodeException"]
