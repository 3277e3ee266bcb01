"""What tests of whole fleets share: brokers, bundles, programs, devices in threads, a watcher."""
