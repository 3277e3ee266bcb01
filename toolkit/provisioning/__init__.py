"""What a fleet needs to talk in private: certificates, passwords, access rules."""
